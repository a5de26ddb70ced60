// Package setup looks at what a machine has for Conclave, without a running system: Ollama and its models, GPU, memory
// and web search. It suggests a model that fits.
package setup

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"conclave/actors/tools"
	"conclave/cmd/conclave/internal/term"
	"conclave/pkg/local"
	"conclave/pkg/model"
	"conclave/pkg/model/ollama"
)

// probeTimeout bounds each look.
const probeTimeout = 2 * time.Second

// Machine is what was found.
type Machine struct {
	OllamaURL string   `json:"ollama_url"`
	Ollama    bool     `json:"ollama"` // it answers
	Models    []string `json:"models"` // that it has
	// of them: the largest that can answer and fits into the free memory; "" = none
	Best      string `json:"best,omitempty"`
	Wanted    string `json:"wanted"` // the assistant's model by the settings
	Memory    int64  `json:"memory"` // free, in bytes; 0 = unknown
	GPU       string `json:"gpu,omitempty"`
	GPUMemory int64  `json:"gpu_memory,omitempty"` // free, in bytes
	Search    string `json:"search"`               // what answers searches
	SearchOK  bool   `json:"search_ok"`
	SearchFix string `json:"search_fix,omitempty"`
	// Suggested is the largest known model that fits into the free memory, nil when none does.
	Suggested *Candidate `json:"suggested,omitempty"`
	// Elsewhere is the address of an Ollama that answers while the one of the settings does not; "" = none.
	Elsewhere string `json:"elsewhere,omitempty"`
	Tested    *Test  `json:"tested,omitempty"` // nil = no model was tested
}

// Candidate is a model that works as the assistant, with its download size.
type Candidate struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
}

// candidates are the models that setup suggests, largest first. Sizes are those of the default quantization, in bytes.
var candidates = []Candidate{
	{"gemma4:12b", 8_100 << 20},
	{"qwen2.5:7b-instruct", 4_700 << 20},
	{"gemma3:4b", 3_300 << 20},
	{"qwen2.5:3b-instruct", 1_900 << 20},
	{"qwen2.5:1.5b-instruct", 1_000 << 20},
}

// Settings are the settings that name what the machine should have.
type Settings struct {
	OllamaURL  string
	Model      string // of the assistant
	Search     string // provider of web_search
	SearXNGURL string
	Addresses  []string // where Ollama is looked for when it does not answer at OllamaURL
}

// Look finds out what the machine has. It changes nothing and takes a few seconds at most.
func Look(ctx context.Context, s Settings) Machine {
	m := Machine{
		OllamaURL: s.OllamaURL, Models: []string{}, Wanted: s.Model,
		Memory: local.AvailableMemory(), Search: s.Search,
	}
	m.GPU, m.GPUMemory = findGPU(ctx)
	if m.ListModels(ctx, s.OllamaURL); !m.Ollama {
		m.Elsewhere = findOllama(ctx, s.Addresses)
	}
	switch s.Search {
	case "searxng":
		problem, _ := tools.ProbeSearXNG(ctx, s.SearXNGURL, probeTimeout)
		m.Search, m.SearchOK = "SearXNG at "+s.SearXNGURL, problem == ""
		if !m.SearchOK {
			m.SearchFix = "conclave setup --search searxng shows how to start one; --search wikipedia needs none, " +
				"--search none switches it off"
		}
	default:
		m.SearchOK = true
	}
	m.Suggested = suggest(max(m.Memory, m.GPUMemory))
	return m
}

// CommonAddresses are where Ollama commonly runs: at OLLAMA_HOST, on this machine, and on the host of a container.
func CommonAddresses() []string {
	all := []string{
		"http://127.0.0.1:11434", "http://[::1]:11434", "http://host.docker.internal:11434", "http://172.17.0.1:11434",
		"http://host.containers.internal:11434",
	}
	host := os.Getenv("OLLAMA_HOST")
	if host == "" {
		return all
	}
	if !strings.Contains(host, "://") {
		host = "http://" + host
	}
	u, err := url.Parse(host)
	if err != nil || u.Hostname() == "" {
		return all
	}
	name, port := u.Hostname(), cmp.Or(u.Port(), "11434")
	if name == "0.0.0.0" || name == "::" { // what a server listens on
		name = "127.0.0.1"
	}
	return append([]string{u.Scheme + "://" + net.JoinHostPort(name, port)}, all...)
}

// findOllama returns the first address at which Ollama answers, "" for none. All are asked at the same time.
func findOllama(ctx context.Context, addresses []string) string {
	answers := make([]bool, len(addresses))
	var asked sync.WaitGroup
	for i, address := range addresses {
		asked.Go(func() {
			var other Machine
			other.ListModels(ctx, address)
			answers[i] = other.Ollama
		})
	}
	asked.Wait()
	for i, address := range addresses {
		if answers[i] {
			return address
		}
	}
	return ""
}

// OnThisMachine reports whether the Ollama that answers elsewhere is on this machine.
func (m Machine) OnThisMachine() bool {
	u, err := url.Parse(m.Elsewhere)
	return err == nil && local.IsLocalHost(u.Hostname())
}

// ListModels asks the Ollama at url for its models, and notes whether it answers.
func (m *Machine) ListModels(ctx context.Context, url string) {
	b, err := ollama.New(ollama.Config{URL: url})
	if err != nil {
		return // the settings are valid
	}
	defer b.Close()
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	list, err := b.List(ctx)
	if m.Ollama = err == nil; !m.Ollama {
		return
	}
	for _, i := range list {
		m.Models = append(m.Models, i.Name)
	}
	m.Best = chooseBest(list, max(m.Memory, m.GPUMemory))
}

// chooseBest returns the largest model that can answer and fits into free memory, "" for none. Models for vectors are
// known by their names too, because a list may lack what a model can. With unknown memory, 0, every model fits.
func chooseBest(list []model.Info, free int64) (best string) {
	largest := int64(-1)
	for _, i := range list {
		if !i.Embedding && !isEmbedder(i.Name) && i.Size > largest && (free == 0 || fitsMemory(i.Size, free)) {
			best, largest = i.Name, i.Size
		}
	}
	return best
}

// isEmbedder reports whether the name of a model is one of a model for vectors, which cannot answer.
func isEmbedder(name string) bool {
	return strings.Contains(name, "embed") || strings.Contains(name, "minilm")
}

// findGPU asks the driver of NVIDIA, then reads what Linux knows of AMD cards; a Mac with Apple silicon shares its
// memory. "" = none was found.
func findGPU(ctx context.Context) (name string, free int64) {
	if runtime.GOOS == "darwin" && runtime.GOARCH == "arm64" {
		return "Apple silicon, which shares the memory", 0
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	out, _ := exec.CommandContext(ctx, "nvidia-smi", "--query-gpu=name,memory.free", "--format=csv,noheader,nounits").
		Output() // nothing without the driver
	if name, free = parseGPU(string(out)); name != "" {
		return name, free
	}
	return findAMD("/sys")
}

// vendorAMD is the PCI vendor id of AMD as sysfs shows it.
const vendorAMD = "0x1002"

// findAMD returns the AMD card with the most free memory; sysfs is the folder of that file system. A card whose driver
// does not report its memory is left out. "" = none was found.
func findAMD(sysfs string) (name string, free int64) {
	devices, _ := filepath.Glob(filepath.Join(sysfs, "class/drm/card*/device")) // the pattern is valid
	for _, device := range devices {
		read := func(attribute string) string {
			b, _ := os.ReadFile(filepath.Join(device, attribute)) // an attribute that is missing is empty
			return strings.TrimSpace(string(b))
		}
		total, err := strconv.ParseInt(read("mem_info_vram_total"), 10, 64)
		if err != nil || read("vendor") != vendorAMD {
			continue
		}
		used, err := strconv.ParseInt(read("mem_info_vram_used"), 10, 64)
		if err != nil || total-used <= free {
			continue
		}
		name, free = cmp.Or(term.Plain(read("product_name")), "AMD GPU"), total-used
	}
	return name, free
}

// parseGPU reads the first line of the driver's list: name, free MiB.
func parseGPU(list string) (name string, free int64) {
	line, _, _ := strings.Cut(list, "\n")
	name, mib, ok := strings.Cut(line, ",")
	if _, err := fmt.Sscan(mib, &free); !ok || err != nil {
		return "", 0
	}
	return term.Plain(strings.TrimSpace(name)), free << 20
}

// suggest returns the largest candidate that fits into free memory. With unknown memory it is nil.
func suggest(free int64) *Candidate {
	for _, c := range candidates {
		if fitsMemory(c.Size, free) {
			return &c
		}
	}
	return nil
}

// fitsMemory reports whether a model of so many bytes can run in free memory, with a quarter of its size and a gigabyte
// to spare for the context and the rest of the system.
func fitsMemory(size, free int64) bool { return size+size/4+1<<30 <= free }

// Has reports whether Ollama has a model; a name without a tag means the tag latest.
func (m Machine) Has(name string) bool {
	return slices.ContainsFunc(m.Models, func(n string) bool {
		return strings.TrimSuffix(n, ":latest") == strings.TrimSuffix(name, ":latest")
	})
}

// Missing reports whether Ollama runs without a model that could answer.
func (m Machine) Missing() bool {
	return m.Ollama && !slices.ContainsFunc(m.Models, func(name string) bool { return !isEmbedder(name) })
}

// Print prints what was found, and what to do next.
func (m Machine) Print(w io.Writer, program string) {
	row := func(name, text string) {
		fmt.Fprintf(w, "  %s %s\n", term.Paint(w, term.Dim, fmt.Sprintf("%-8s", name)), text)
	}
	fmt.Fprintln(w, term.Paint(w, term.Bold, "Found on this machine"))
	switch {
	case !m.Ollama:
		row("ollama", "does not answer at "+m.OllamaURL)
		if m.Elsewhere != "" {
			row("", "answers at "+m.Elsewhere)
		}
	case len(m.Models) == 0:
		row("ollama", "runs at "+m.OllamaURL+", without a model")
	default:
		row("ollama", fmt.Sprintf("runs at %s with %s: %s", m.OllamaURL, term.Count(len(m.Models), "model"),
			term.Plain(strings.Join(m.Models, ", "))))
	}
	gpu := "none found: answers are slower on the processor"
	if m.GPU != "" {
		gpu = m.GPU
		if m.GPUMemory > 0 {
			gpu += ", " + term.Bytes(m.GPUMemory) + " free"
		}
	}
	row("gpu", gpu)
	if memory := "free memory is not known"; m.Memory > 0 {
		row("memory", term.Bytes(m.Memory)+" free")
	} else {
		row("memory", memory)
	}
	search := m.Search
	if !m.SearchOK {
		search += " does not answer"
	}
	row("search", search)
	fmt.Fprintln(w, term.Paint(w, term.Bold, "Next"))
	for _, s := range m.Steps(program) {
		row("", s)
	}
}

// Steps are what to do next, in this order.
func (m Machine) Steps(program string) (steps []string) {
	pull := program + " setup --model auto"
	if m.Suggested != nil {
		pull += fmt.Sprintf(" (pulls %s, %s)", m.Suggested.Name, term.Bytes(m.Suggested.Size))
	} else {
		pull = program + " setup --model <name> (no known model fits into the free memory; a small one may)"
	}
	switch {
	case m.Elsewhere != "":
		steps = append(steps, program+" setup --ollama-url "+m.Elsewhere+" uses the Ollama that answers there", pull)
	case !m.Ollama:
		steps = append(steps, "install Ollama (https://ollama.com/download) and run: ollama serve",
			"or, for one at another address: "+program+" setup --ollama-url <url>", pull,
			"until then a built-in demo model answers: "+program)
	case !m.Has(m.Wanted) && m.Best == "":
		steps = append(steps, pull)
	case !m.Has(m.Wanted):
		steps = append(steps, fmt.Sprintf("%s setup --model %s makes it the assistant's model (the setting is %s, "+
			"which Ollama does not have)", program, term.Plain(m.Best), m.Wanted))
	}
	if !m.SearchOK {
		steps = append(steps, m.SearchFix)
	}
	return append(steps, program+" starts everything; "+program+" chat talks with it")
}
