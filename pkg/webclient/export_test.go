package webclient

import "net/url"

// ParseURL is parseURL with the rule of [New].
func ParseURL(raw string, ports ...int) (*url.URL, error) { return parseURL(raw, ports, IsPublicAddr) }
