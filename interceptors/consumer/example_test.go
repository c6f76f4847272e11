package consumer_test

import (
	"context"
	"fmt"

	dedupv1 "github.com/dedupd/dedupd/gen/dedup/v1"
	"github.com/dedupd/dedupd/interceptors"
	"github.com/dedupd/dedupd/interceptors/consumer"
	"github.com/dedupd/dedupd/server"
	"github.com/dedupd/dedupd/storage/embedded"
)

// A loop of one's own asks for a decision and tells it to the broker. Two messages
// of one order are one intent: their key is made of the order, not of their ids.
func ExampleConsumer_Handle() {
	store, err := embedded.OpenMemory(embedded.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()                                    //nolint:errcheck // in memory
	dedupd, err := server.New(server.Config{Store: store}) // in production: interceptors.DialDedupd
	if err != nil {
		fmt.Println(err)
		return
	}
	queue, err := consumer.New(consumer.Config{
		Dedup: dedupv1.NewDedupServiceClient(dedupd.Conn()), Namespace: "shipping", Operation: "consume orders.paid",
		Key:         func(m consumer.Message) (string, error) { return interceptors.Key("ship", string(m.Body)) },
		DeadLetters: &world{},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer queue.Close()
	for _, m := range []consumer.Message{{ID: "m1", Body: []byte("order 7")}, {ID: "m1", Body: []byte("order 7")}, {ID: "m2", Body: []byte("order 7")}} {
		d := queue.Handle(context.Background(), m, func(context.Context) error {
			fmt.Println("shipped", string(m.Body))
			return nil
		})
		fmt.Println(m.ID, d.Action, d.Duplicate)
	}
	// Output:
	// shipped order 7
	// m1 ack false
	// m1 ack true
	// m2 ack true
}
