//go:build measure

package firewall

import (
	"fmt"
	"math"
)

// part counts flagged texts.
type part struct{ flagged, all int }

func (p *part) count(flagged bool) {
	p.all++
	if flagged {
		p.flagged++
	}
}

// String returns the counts, the rate and its 95 % Wilson interval; "-" without texts.
func (p part) String() string {
	if p.all == 0 {
		return "-"
	}
	low, high := p.interval()
	return fmt.Sprintf("%d of %d (%.1f %%, %.1f to %.1f)", p.flagged, p.all, 100*p.rate(), 100*low, 100*high)
}

func (p part) rate() float64 { return float64(p.flagged) / float64(max(p.all, 1)) }

// interval returns the 95 % Wilson score interval of the rate, 0 to 1 for no texts.
func (p part) interval() (low, high float64) {
	const z = 1.96
	if p.all == 0 {
		return 0, 1
	}
	n, rate := float64(p.all), p.rate()
	center := rate + z*z/(2*n)
	margin := z * math.Sqrt(rate*(1-rate)/n+z*z/(4*n*n))
	return max(0, (center-margin)/(1+z*z/n)), min(1, (center+margin)/(1+z*z/n))
}
