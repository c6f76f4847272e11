package interceptors

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every field of two observers is told, in their order, and a missing one is no
// harm: a field that is added later must be joined too.
func TestSeveralObserversAreAllTold(t *testing.T) {
	t.Parallel()
	for name, join := range map[string]func(t *testing.T, told *[]string){
		"of the client": func(t *testing.T, told *[]string) {
			t.Helper()
			var config clientConfig
			for _, who := range []string{"first", "", "second"} {
				require.NoError(t, WithCallObserver(tells[CallObserver](who, told)).applyClient(&config))
			}
			callAll(reflect.ValueOf(config.observe))
		},
		"of the server": func(t *testing.T, told *[]string) {
			t.Helper()
			var config serverConfig
			for _, who := range []string{"first", "", "second"} {
				require.NoError(t, WithObserver(tells[Observer](who, told)).applyServer(&config))
			}
			callAll(reflect.ValueOf(config.observe))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var told []string
			join(t, &told)
			require.NotEmpty(t, told)
			for i, who := range told {
				require.Equal(t, []string{"first", "second"}[i%2], who)
			}
		})
	}
}

// tells returns an observer that notes who, by every function it has; one that has
// none where who is empty.
func tells[T any](who string, told *[]string) (o T) {
	var fill func(v reflect.Value)
	fill = func(v reflect.Value) {
		for i := range v.NumField() {
			f := v.Field(i)
			if f.Kind() == reflect.Struct {
				fill(f)
				continue
			}
			f.Set(reflect.MakeFunc(f.Type(), func([]reflect.Value) []reflect.Value {
				*told = append(*told, who)
				return nil
			}))
		}
	}
	if who != "" {
		fill(reflect.ValueOf(&o).Elem())
	}
	return o
}

// callAll calls every function of an observer with zero values.
func callAll(v reflect.Value) {
	for i := range v.NumField() {
		f := v.Field(i)
		if f.Kind() == reflect.Struct {
			callAll(f)
			continue
		}
		args := make([]reflect.Value, f.Type().NumIn())
		for n := range args {
			args[n] = reflect.Zero(f.Type().In(n))
		}
		f.Call(args)
	}
}
