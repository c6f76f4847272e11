// Package pgxinbox is package inbox for pgx: the key commits with the effect, in a
// pgx.Tx.
//
// The life of a call is told in package inbox; its errors, options, WithLocal, As and
// Schema serve both. Mark and Done also take the transactions of pgxpool and of
// cockroach-go's crdbpgxv5, whose loop may run them again.
//
// It holds no rule of its own: it only puts pgx under the table.
package pgxinbox
