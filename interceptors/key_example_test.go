package interceptors_test

import (
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
)

// One order is charged under one key, from whichever process and however often.
func ExampleKey() {
	key, err := interceptors.Key("charge", "order", "4471")
	fmt.Println(key, err)

	// A fact that is missing never becomes a key that others share.
	_, err = interceptors.Key("charge", "order", "")
	fmt.Println(status.Code(err))
	// Output:
	// charge:order:4471 <nil>
	// InvalidArgument
}

// An application's own ABORTED is told from dedupd's "somebody is at it".
func ExampleReasonOf() {
	err := status.Error(codes.Aborted, "the cart changed")
	if reason, ours := interceptors.ReasonOf(err); ours && reason == dedupv1.Reason_REASON_IN_PROGRESS {
		fmt.Println("the first attempt is still running")
		return
	}
	fmt.Println(err)
	// Output:
	// rpc error: code = Aborted desc = the cart changed
}
