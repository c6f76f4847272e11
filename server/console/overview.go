package console

import (
	"net/http"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
)

const hotKeys = 10

// overview shows what needs somebody, and what this replica does.
func (c *console) overview(w http.ResponseWriter, r *http.Request) {
	stats, err := c.admin.Stats(r.Context(), &dedupv1.StatsRequest{HotKeys: hotKeys})
	if err != nil {
		c.fail(w, "overview", err)
		return
	}
	c.render(w, http.StatusOK, "overview", "Overview", "overview", stats)
}
