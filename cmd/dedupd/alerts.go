package main

import (
	"errors"
	"time"

	"github.com/dedupd/dedupd/server"
)

// alertFlags send alerts to a webhook.
type alertFlags struct {
	Webhook  string `placeholder:"URL" help:"Post alerts here, in Alertmanager's webhook format: dead letters, unknown and overdue outcomes, conflicts, a store out of reach. Of several dedupd on one database give it to one. Set it by the variable where the URL holds a secret."`
	Every    span   `default:"10s" help:"How often alerts are looked for: 1s to 1h."`
	CoolDown span   `default:"5m" help:"Least time between two messages on the same alert and namespace: 1s to 24h."`
	Repeat   span   `default:"4h" help:"An alert that goes on is sent again after this long: --alert-cool-down to 30d."`
}

func (f alertFlags) check() error {
	errs := []error{
		within("alert-every", f.Every, span(time.Second), span(time.Hour), span.String),
		within("alert-cool-down", f.CoolDown, span(time.Second), span(day), span.String),
		within("alert-repeat", f.Repeat, f.CoolDown, span(30*day), span.String),
	}
	if server.CheckWebhook(f.Webhook) != nil {
		errs = append(errs, errors.New("--alert-webhook takes http://host/path or https://host/path"))
	}
	return errors.Join(errs...)
}

func (f alertFlags) config() server.AlertConfig {
	return server.AlertConfig{
		URL: f.Webhook, Every: time.Duration(f.Every), CoolDown: time.Duration(f.CoolDown), Repeat: time.Duration(f.Repeat),
	}
}
