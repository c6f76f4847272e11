// Package hooks joins functions that are told of something, each of which may be
// nil: those of two observers become those of one, that tells the first, then the
// second.
//
// It knows no observer, and recovers no panic.
package hooks

// Join0 joins functions of nothing.
func Join0(a, b func()) func() {
	if a == nil || b == nil {
		return either(a == nil, b, a)
	}
	return func() { a(); b() }
}

// Join1 joins functions of one value.
func Join1[A any](a, b func(A)) func(A) {
	if a == nil || b == nil {
		return either(a == nil, b, a)
	}
	return func(v A) { a(v); b(v) }
}

// Join2 joins functions of two values.
func Join2[A, B any](a, b func(A, B)) func(A, B) {
	if a == nil || b == nil {
		return either(a == nil, b, a)
	}
	return func(v A, w B) { a(v, w); b(v, w) }
}

// Join3 joins functions of three values.
func Join3[A, B, C any](a, b func(A, B, C)) func(A, B, C) {
	if a == nil || b == nil {
		return either(a == nil, b, a)
	}
	return func(v A, w B, x C) { a(v, w, x); b(v, w, x) }
}

func either[F any](first bool, a, b F) F {
	if first {
		return a
	}
	return b
}
