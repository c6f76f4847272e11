// Package console is the operators' page on the HTTP port: what needs somebody,
// records and their lives, dead letters, and what can be done about them.
//
// The life of a page:
//  1. New is given a connection to the services; it never sees a store.
//  2. A request is routed by its method and path; GET reads, POST changes.
//  3. The handler asks the services through the generated clients, for a bounded
//     time, and fills a template.
//  4. A POST that changes something is answered by a page that says what will
//     happen; only the button there, which sends confirm=yes, does it.
//  5. A refusal is shown as the service worded it, with its reason.
//
// Pages are rendered by the server and need no script; keys and callers are
// masked unless Options.ShowKeys is set, and everything from outside is shown as
// text. It asks nobody who they are: who reaches the port may do what the
// page does. It draws no charts over time; metrics are for that.
package console

import (
	"bytes"
	"context"
	"embed"
	"encoding/hex"
	"html/template"
	"io/fs"
	"net/http"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

const (
	readTimeout = 10 * time.Second
	actTimeout  = 40 * time.Second // for thousands of entries; what is done by then is told
	maxForm     = 1 << 20          // bytes: ten thousand ids and a note
	pageSize    = 50
)

//go:embed templates static
var files embed.FS

// Options of the console.
type Options struct {
	// ShowKeys shows keys and callers; without it they are masked.
	ShowKeys bool
	// Version is told at the foot of every page.
	Version string
}

// console serves the pages.
type console struct {
	opts    Options
	dedup   dedupv1.DedupServiceClient
	letters dedupv1.DeadLetterServiceClient
	admin   dedupv1.AdminServiceClient
	pages   map[string]*template.Template
}

// New returns the console's handler, which expects to be mounted at /console
// with that prefix stripped. It is safe for concurrent use.
func New(cc grpc.ClientConnInterface, opts Options) http.Handler {
	c := &console{
		opts:    opts,
		dedup:   dedupv1.NewDedupServiceClient(cc),
		letters: dedupv1.NewDeadLetterServiceClient(cc),
		admin:   dedupv1.NewAdminServiceClient(cc),
		pages:   parsePages(opts),
	}
	static, _ := fs.Sub(files, "static") // embedded: it is there
	mux := http.NewServeMux()
	mux.HandleFunc("GET /static/{file}", func(w http.ResponseWriter, r *http.Request) {
		file := r.PathValue("file")
		if info, err := fs.Stat(static, file); err != nil || info.IsDir() {
			c.noPage(w, r)
			return
		}
		w.Header().Set("Cache-Control", "max-age=300")
		http.ServeFileFS(w, r, static, file) //nolint:gosec // of an embedded file system, which has no other files
	})
	mux.HandleFunc("GET /{$}", c.overview)
	mux.HandleFunc("GET /records", c.records)
	mux.HandleFunc("POST /records/find", c.findRecords)
	mux.HandleFunc("GET /records/{id}", c.record)
	mux.HandleFunc("POST /records/{id}/resolve", c.resolve)
	mux.HandleFunc("GET /dead-letters", c.deadLetters)
	mux.HandleFunc("GET /dead-letters/{id}", c.deadLetter)
	mux.HandleFunc("POST /dead-letters/act", c.act)
	mux.HandleFunc("/", c.noPage)
	return secured(mux)
}

func (c *console) noPage(w http.ResponseWriter, _ *http.Request) {
	c.fail(w, "", status.Error(codes.NotFound, "there is no such page"))
}

// secured tells browsers to run and load nothing from elsewhere, to keep no page,
// and to show it in no frame; and bounds what a page takes and how long it asks.
func secured(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy",
			"default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		limit := readTimeout
		if r.Method == http.MethodPost {
			limit = actTimeout
		}
		ctx, cancel := context.WithTimeout(r.Context(), limit)
		defer cancel()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// parsePages joins every page with the frame around it. A mistake in a template
// is a mistake in this package, and every page is rendered by its tests.
func parsePages(opts Options) map[string]*template.Template {
	pages := map[string]*template.Template{}
	names, _ := fs.Glob(files, "templates/*.html") // the pattern is well formed
	frame := template.New("").Funcs(helpers(opts))
	frame = template.Must(frame.ParseFS(files, "templates/frame.html", "templates/parts.html"))
	for _, name := range names {
		page := template.Must(template.Must(frame.Clone()).ParseFS(files, name))
		pages[name[len("templates/"):len(name)-len(".html")]] = page
	}
	return pages
}

// frame is what every page is filled with.
type frame struct {
	Title   string
	Section string // which of the links at the top is where we are
	Version string
	Page    any
}

// render writes a page whole, or an error page.
func (c *console) render(w http.ResponseWriter, code int, page, title, section string, data any) {
	var buf bytes.Buffer
	err := c.pages[page].ExecuteTemplate(&buf, "frame", frame{Title: title, Section: section, Version: c.opts.Version, Page: data})
	if err != nil {
		http.Error(w, "the page could not be made: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	_, _ = buf.WriteTo(w) // the peer's loss
}

// problem is what an error page says.
type problem struct {
	Message string
	Reason  string
	Code    string
	Next    string
	Back    string // the page to look at again
}

// fail shows a refusal as the service worded it.
func (c *console) fail(w http.ResponseWriter, section string, err error) {
	c.failBack(w, section, "", err)
}

// failBack is fail with a link to the page that should be looked at again.
func (c *console) failBack(w http.ResponseWriter, section, back string, err error) {
	st := status.Convert(err)
	reason := reasonOf(st)
	code := map[codes.Code]int{
		codes.NotFound: http.StatusNotFound, codes.InvalidArgument: http.StatusBadRequest,
		codes.FailedPrecondition: http.StatusConflict, codes.Aborted: http.StatusConflict,
		codes.Unavailable: http.StatusServiceUnavailable, codes.DeadlineExceeded: http.StatusGatewayTimeout,
		codes.ResourceExhausted: http.StatusTooManyRequests,
	}[st.Code()]
	if code == 0 {
		code = http.StatusInternalServerError
	}
	c.render(w, code, "problem", "That did not work", section, problem{
		Message: st.Message(), Reason: reason, Code: st.Code().String(), Next: nextStep(reason), Back: back,
	})
}

// idOf reads an id of n bytes.
func idOf(text string, n int) ([]byte, error) {
	id, err := hex.DecodeString(text)
	if err != nil || len(id) != n {
		return nil, status.Errorf(codes.InvalidArgument, "an id here is %d hex digits; copy it whole", 2*n)
	}
	return id, nil
}
