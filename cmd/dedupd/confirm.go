package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/term"
)

// askable reports why nobody can be asked, before anything is looked up.
func askable(s streams, yes bool) error {
	if !yes && !term.IsTerminal(int(s.in.Fd())) {
		return usagef("there is no terminal to ask on; pass --yes if you are sure")
	}
	return nil
}

// confirm says what is about to happen and goes on only if yes is typed.
func confirm(ctx context.Context, s streams, consequence string) error {
	return confirmBy(ctx, s, consequence, "yes")
}

// confirmBy asks for a word that is not typed by habit. What is asked is no
// result, so it goes to stderr.
func confirmBy(ctx context.Context, s streams, consequence, word string) error {
	if _, err := fmt.Fprintf(s.err, "%s\nType %s to go on: ", consequence, word); err != nil {
		return err
	}
	answer, err := readLine(ctx, s.in)
	if err != nil {
		return err
	}
	if answer != word {
		return errors.New("not confirmed; nothing was written")
	}
	return nil
}

// readLine reads what was typed, without waiting past ctx. The read itself
// cannot be cancelled; it ends with the process.
func readLine(ctx context.Context, in io.Reader) (string, error) {
	type line struct {
		text string
		err  error
	}
	read := make(chan line, 1)
	go func() {
		text, err := bufio.NewReader(in).ReadString('\n')
		read <- line{text: strings.TrimSpace(text), err: err}
	}()
	select {
	case l := <-read:
		if l.err != nil && !errors.Is(l.err, io.EOF) {
			return "", l.err
		}
		return l.text, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}
