package gateway

import "net/http"

// Story is an acceptance story of this build.
type Story struct {
	File    string `json:"file"`
	ID      string `json:"id"`
	Title   string `json:"title"`
	Why     string `json:"why"`
	Command string `json:"command"` // that runs it
}

// onStories lists the stories of this build with the command that runs each. A story starts a system of its own with a scripted
// model; the gateway starts no programs, so the user runs the command.
func (g *Gateway) onStories(w http.ResponseWriter, r *http.Request) error {
	if _, err := parseParams(r); err != nil {
		return err
	}
	list := g.Stories
	if list == nil {
		list = []Story{}
	}
	g.writeJSON(w, http.StatusOK, struct {
		Stories []Story `json:"stories"`
	}{list})
	return nil
}
