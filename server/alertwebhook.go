package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// How long one delivery may take, and the pause after one that failed, which
// doubles from failure to failure.
const (
	alertTimeout    = 10 * time.Second
	alertBackoff    = 5 * time.Second
	maxAlertBackoff = 5 * time.Minute
)

// webhookMessage is a message as Alertmanager sends it to a webhook, version 4.
type webhookMessage struct {
	Version           string            `json:"version"`
	GroupKey          string            `json:"groupKey"`
	TruncatedAlerts   int               `json:"truncatedAlerts"`
	Status            string            `json:"status"`
	Receiver          string            `json:"receiver"`
	GroupLabels       map[string]string `json:"groupLabels"`
	CommonLabels      map[string]string `json:"commonLabels"`
	CommonAnnotations map[string]string `json:"commonAnnotations"`
	ExternalURL       string            `json:"externalURL"`
	Alerts            []webhookAlert    `json:"alerts"`
}

type webhookAlert struct {
	Status       string            `json:"status"`
	Labels       map[string]string `json:"labels"`
	Annotations  map[string]string `json:"annotations"`
	StartsAt     time.Time         `json:"startsAt"`
	EndsAt       time.Time         `json:"endsAt"` // year 1 while it is firing
	GeneratorURL string            `json:"generatorURL"`
	Fingerprint  string            `json:"fingerprint"`
}

// webhookOf is m on the wire.
func webhookOf(m alertMessage, externalURL string) webhookMessage {
	group := map[string]string{"alertname": m.group.name}
	key := fmt.Sprintf("{}:{alertname=%q", m.group.name)
	if m.group.namespace != "" {
		group["namespace"] = m.group.namespace
		key += fmt.Sprintf(", namespace=%q", m.group.namespace)
	}
	out := webhookMessage{
		Version: "4", GroupKey: key + "}", TruncatedAlerts: m.truncated, Status: "resolved",
		Receiver: "dedupd", GroupLabels: group, ExternalURL: externalURL,
	}
	if m.firing() {
		out.Status = "firing"
	}
	for i := range m.alerts {
		s := &m.alerts[i]
		labels := maps.Clone(group)
		maps.Copy(labels, s.labels)
		a := webhookAlert{
			Status: "firing", Labels: labels, Annotations: s.annotations, GeneratorURL: externalURL,
			StartsAt: s.began.UTC(), EndsAt: s.ended.UTC(), Fingerprint: fingerprintText(labels),
		}
		if !s.firing() {
			a.Status = "resolved"
		}
		out.Alerts = append(out.Alerts, a)
		out.CommonLabels = common(out.CommonLabels, labels, i == 0)
		out.CommonAnnotations = common(out.CommonAnnotations, s.annotations, i == 0)
	}
	return out
}

// common is what both have; of the first, all.
func common(all, next map[string]string, first bool) map[string]string {
	if first {
		return maps.Clone(next)
	}
	maps.DeleteFunc(all, func(name, value string) bool { return next[name] != value })
	return all
}

func fingerprintText(labels map[string]string) string {
	h := fnv.New64a()
	_, _ = io.WriteString(h, labelText(labels)) // never fails
	return fmt.Sprintf("%016x", h.Sum64())
}

// webhook posts messages. Its URL may hold a secret: no error names it.
type webhook struct {
	url    string
	agent  string
	client *http.Client
}

func newWebhook(to, version string) *webhook {
	return &webhook{url: to, agent: "dedupd/" + version, client: &http.Client{
		Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, IdleConnTimeout: time.Minute, MaxIdleConns: 1},
		Timeout:   alertTimeout,
		// A redirect would send the message where nobody has said it may go.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

func (w *webhook) send(ctx context.Context, m webhookMessage) error {
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, bytes.NewReader(body))
	if err != nil {
		return errors.New("the webhook's address cannot be used")
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", w.agent)
	res, err := w.client.Do(req)
	if err != nil {
		var withURL *url.Error
		if errors.As(err, &withURL) {
			err = withURL.Err
		}
		return err
	}
	defer res.Body.Close() //nolint:errcheck // read as far as it matters
	_, _ = io.CopyN(io.Discard, res.Body, 64<<10)
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return errors.New("the webhook answered " + strconv.Itoa(res.StatusCode))
	}
	return nil
}

// CheckWebhook reports an address that AlertConfig.URL does not take; empty is fine.
// The error never repeats it, as it may hold a secret.
func CheckWebhook(to string) error {
	u, err := url.Parse(to)
	if to != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
		return errors.New("server: the alert webhook takes http://host/path or https://host/path")
	}
	return nil
}
