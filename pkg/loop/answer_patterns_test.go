package loop

import (
	"strings"
	"testing"
)

// Replies of each kind, and ones that look alike.
var (
	hedging = []string{
		"I don't have access to real-time information, so I cannot say.",
		"I’m sorry, but I don’t have access to the internet.",
		"As of my last update in 2023, the president was someone.",
		"My knowledge cutoff is October 2023.",
		"I cannot browse the web.",
		"I'm unable to browse the internet for that.",
		"I do not have real-time data.",
		"I can't access current information.",
		"Unfortunately I do not have the ability to browse the internet.",
		"That happened after my knowledge cutoff.",
		"My training data only goes up to 2023.",
		strings.Repeat("Some background. ", 200) + "As of my last update this was so.",
	}
	notHedging = []string{
		"I cannot know your name unless you tell me.",
		"I don't know what you mean by that.",
		"The weather in Bern is 21 degrees.",
		"You don't have access to the internet from this machine.",
		"I don't have access to your private files.",
		"The latest version is 1.26; I cannot say when the next comes.",
		"A live stream needs real-time access to the network.",
		"The current president was elected in 2024.",
		"I can't recommend that.",
		"Web browsers access the internet over HTTP.",
		"Das kann ich nicht sagen, ohne mehr zu wissen.",
		"Ich habe keine Haustiere.",
		"No tengo hambre.",
		"",
	}
	announcing = []string{
		"I'll search the web for that.",
		"Let me check the weather for you...",
		"Sure! Let me look that up.",
		"I will now use the web_search tool to find this.",
		"To answer this, I need to search for the latest news.",
		"That is a good question. I'm going to look it up:",
		"First, I will read the file.",
		"Searching for the latest results...",
		"One moment, while I check.",
		"Ich werde jetzt im Internet danach suchen.",
		"Lass mich kurz nachsehen.",
		"Je vais rechercher cela.",
		"Voy a buscar esa información.",
		"Vou pesquisar isso.",
		"Fammi controllare.",
	}
	notAnnouncing = []string{
		"Let me know if you need anything else.",
		"I will be happy to help.",
		"Would you like me to search the web?",
		"If you want, I can search the web.",
		"I'll check once you tell me the city.",
		"The answer is 42.",
		"You will find it in the drawer. I checked.",
		"Let me explain: water boils at 100 degrees.",
		"I'd use a map for that.",
		"She said: I will search for you. He laughed.",
		"Ich werde oft danach gefragt.",
		"Je vais bien, merci.",
		"Search engines index pages.",
		"I'll search. " + strings.Repeat("But this is a long answer about something else. ", 40),
		"",
	}
)

func TestIsHedge(t *testing.T) {
	t.Parallel()
	for _, s := range hedging {
		if !isHedge(s) {
			t.Errorf("not seen as a hedge: %q", s)
		}
	}
	for _, s := range notHedging {
		if isHedge(s) {
			t.Errorf("seen as a hedge: %q", s)
		}
	}
}

func TestAnnouncesAction(t *testing.T) {
	t.Parallel()
	for _, s := range announcing {
		if !announcesAction(s) {
			t.Errorf("not seen as an announcement: %q", s)
		}
	}
	for _, s := range notAnnouncing {
		if announcesAction(s) {
			t.Errorf("seen as an announcement: %q", s)
		}
	}
}
