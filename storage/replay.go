package storage

// A replay is a Reserve that carries a claim: it is about the entry's record,
// whoever sends it, and it passes over errors that were there before it.

// claim finds the entry that q replays, and makes q its caller's. It is false
// where the claim does not hold. A repeat whose first answer was lost is still
// answered once the entry is resolved.
func (t *turn) claim(q *Reserve) bool {
	e := t.entry(q.Claim.Entry)
	if e == nil || e.Claim != q.Claim.Token || !e.HasRequest {
		return false
	}
	answered := e.State == EntryResolved && t.state == StateCompleted && t.rec.Outcome.Success()
	if e.StateAt(t.now) != EntryReplaying && !answered {
		return false
	}
	id := q.Identity
	id.Caller = e.Identity.Caller
	if id != e.Identity {
		return false
	}
	t.replayed, q.Identity = e, id
	return true
}

// outlived reports whether q replays a call of which nothing is known any more.
func (t *turn) outlived(terms Terms) bool {
	return t.replayed != nil && t.state == StateAbsent && t.outdated(t.replayed, terms)
}

// fresh reports whether q replays an entry and its claim was granted nothing
// yet, so that an error of the record is of an earlier run.
func (t *turn) fresh() bool { return t.replayed != nil && t.replayed.ClaimFence == 0 }

// reopens reports whether the completed record is to be opened again for
// attempt a: a final error, once for each claim of an operator; success never.
func (t *turn) reopens(a AttemptID) bool {
	return t.fresh() && t.replayed.ByOperator && !t.rec.Outcome.Success() && !t.spent(a)
}

// grantedTo remembers on the replayed entry which grant its claim made.
func (t *turn) grantedTo(f Fence) {
	if t.replayed != nil {
		c := *t.replayed
		c.ClaimFence = f
		t.write(&c)
	}
}

// foundDone resolves what waited for work that a replay found done.
func (t *turn) foundDone(terms Terms) {
	if t.replayed != nil && t.rec.Outcome.Success() {
		t.resolve(terms, func(*DeadLetter) EntryResult { return ResultAlreadyDone },
			EntryExhausted, EntryUnreconciled, EntryOverdue)
	}
}

// follow does to the entries what follows from what req did to the record, and
// gives the answer its entry.
func (t *turn) follow(req Request, next *Record, ans *Answer) {
	switch q := req.(type) {
	case Reserve:
		switch {
		case ans.Verdict == VerdictClaimInvalid:
		case t.replayed != nil:
			ans.Entry = t.latest(t.replayed)
		default:
			ans.Entry = t.oldest()
		}
	case Complete:
		switch {
		case ans.Conflict != nil:
			t.parkConflict(q, ans)
		case next != nil:
			t.followComplete(q, next)
		}
		if ans.Entry == nil {
			ans.Entry = t.oldest()
		}
	case Resolve:
		if next != nil {
			t.followResolve(q)
		}
	case Release:
		if next != nil {
			t.followEnd(next, q.Terms)
		}
	}
}

// followComplete resolves what waited for the work that is done now.
func (t *turn) followComplete(q Complete, next *Record) {
	if next.State != StateCompleted || !q.Outcome.Success() {
		t.followEnd(next, q.Terms)
		return
	}
	t.resolve(q.Terms, func(e *DeadLetter) EntryResult {
		switch {
		case e.State != EntryReplaying || e.ClaimFence != q.Fence:
			return ResultSuperseded
		case t.rec.Mode == ModeReconcile && t.holds(q.Attempt, q.Fence):
			return ResultAlreadyDone // it looked, and did not run
		}
		return ResultReplayed
	}, EntryExhausted, EntryUnreconciled, EntryOverdue)
}

// followResolve resolves what an operator's verdict settles. A request whose run
// turned out to have done nothing still waits to be sent.
func (t *turn) followResolve(q Resolve) {
	kinds := []EntryKind{EntryUnreconciled, EntryOverdue}
	if q.Completed {
		kinds = append(kinds, EntryExhausted)
	}
	t.resolve(q.Terms, superseded, kinds...)
}

// followEnd resolves what only says that a record is unfinished, once it is not.
func (t *turn) followEnd(next *Record, terms Terms) {
	if next.State == StateCompleted || next.State == StateReleased {
		t.resolve(terms, superseded, EntryOverdue)
	}
}

func superseded(*DeadLetter) EntryResult { return ResultSuperseded }

// resolve closes the open entries of these kinds that the record counts. One that was
// parked when the record was over belongs to an earlier life of its key, and stores
// do not read it for what happens to this one.
func (t *turn) resolve(terms Terms, result func(*DeadLetter) EntryResult, kinds ...EntryKind) {
	for _, k := range kinds {
		if e := t.openOf(k); e != nil && (e.Pinned || e == t.replayed) {
			c := *e
			c.Result = result(e)
			t.closeEntry(&c, EntryResolved, terms)
			t.changed = append(t.changed, &c)
		}
	}
}
