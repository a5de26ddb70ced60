package scripted

import (
	"strings"

	"conclave/pkg/text"
)

// capitals are the capitals that the demo model knows, by the folded name of the country.
var capitals = map[string][2]string{
	"argentina": {"Argentina", "Buenos Aires"}, "australia": {"Australia", "Canberra"},
	"austria": {"Austria", "Vienna"}, "belgium": {"Belgium", "Brussels"}, "brazil": {"Brazil", "Brasília"},
	"canada": {"Canada", "Ottawa"}, "chile": {"Chile", "Santiago"}, "china": {"China", "Beijing"},
	"czech republic": {"the Czech Republic", "Prague"}, "denmark": {"Denmark", "Copenhagen"},
	"egypt": {"Egypt", "Cairo"}, "finland": {"Finland", "Helsinki"}, "france": {"France", "Paris"},
	"germany": {"Germany", "Berlin"}, "greece": {"Greece", "Athens"}, "hungary": {"Hungary", "Budapest"},
	"iceland": {"Iceland", "Reykjavík"}, "india": {"India", "New Delhi"}, "ireland": {"Ireland", "Dublin"},
	"italy": {"Italy", "Rome"}, "japan": {"Japan", "Tokyo"}, "kenya": {"Kenya", "Nairobi"},
	"mexico": {"Mexico", "Mexico City"}, "new zealand": {"New Zealand", "Wellington"},
	"norway": {"Norway", "Oslo"}, "peru": {"Peru", "Lima"}, "poland": {"Poland", "Warsaw"},
	"portugal": {"Portugal", "Lisbon"}, "south korea": {"South Korea", "Seoul"}, "spain": {"Spain", "Madrid"},
	"sweden": {"Sweden", "Stockholm"}, "switzerland": {"Switzerland", "Bern"}, "turkey": {"Turkey", "Ankara"},
	"ukraine": {"Ukraine", "Kyiv"}, "united kingdom": {"the United Kingdom", "London"},
	"united states": {"the United States", "Washington, D.C."}, "usa": {"the United States", "Washington, D.C."},
	"uk": {"the United Kingdom", "London"}, "vietnam": {"Vietnam", "Hanoi"},
}

var capitalQuestion = text.Pattern(`(?i)\bcapital(?: city)? of (?:the )?([\p{L} ]+?)\s*[?.!]*\s*$`)

// findCapital returns the country whose capital q asks for, and the capital. ok is false for another question and for a
// country that the demo model does not know.
func findCapital(q string) (country, capital string, ok bool) {
	m := capitalQuestion().FindStringSubmatch(q)
	if m == nil {
		return "", "", false
	}
	found, ok := capitals[strings.Join(strings.Fields(text.Fold(m[1])), " ")]
	return found[0], found[1], ok
}
