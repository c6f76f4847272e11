package interceptors

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
)

const (
	maxMessage = 8 << 20 // dedupd's limit, either way
	roundRobin = `{"loadBalancingConfig":[{"round_robin":{}}]}`
)

// DialOption configures DialDedupd.
type DialOption interface{ applyDial(c *dialConfig) }

type dialOption func(c *dialConfig)

func (f dialOption) applyDial(c *dialConfig) { f(c) }

type dialConfig struct {
	creds credentials.TransportCredentials
	more  []grpc.DialOption
}

// DialInsecure reaches dedupd without encryption or authentication: for loopback
// and meshes that encrypt by themselves.
func DialInsecure() DialOption {
	return dialOption(func(c *dialConfig) { c.creds = insecure.NewCredentials() })
}

// DialCredentials reaches dedupd by the given credentials.
func DialCredentials(creds credentials.TransportCredentials) DialOption {
	return dialOption(func(c *dialConfig) { c.creds = creds })
}

// DialWith adds options of gRPC's own, such as a stats handler or a dialer.
func DialWith(opts ...grpc.DialOption) DialOption {
	return dialOption(func(c *dialConfig) { c.more = append(c.more, opts...) })
}

// DialDedupd makes a connection to dedupd for dedupv1.NewDedupServiceClient, as
// the interceptors need it: keepalive pings that notice a dead peer within 40 s,
// 8 MiB messages, quick reconnects, calls spread over all addresses, and none of
// gRPC's own retries, since the caller's have one budget. It does not connect
// yet. Each address is host:port, or one target of gRPC's own syntax; one of
// DialInsecure and DialCredentials is required.
func DialDedupd(addresses []string, opts ...DialOption) (*grpc.ClientConn, error) {
	c := &dialConfig{}
	for _, o := range opts {
		o.applyDial(c)
	}
	if c.creds == nil {
		return nil, errors.New("say how dedupd is reached: DialCredentials, or DialInsecure for plain text")
	}
	target, by, err := dialTarget(addresses)
	if err != nil {
		return nil, err
	}
	reconnect := backoff.DefaultConfig
	reconnect.BaseDelay, reconnect.MaxDelay = 100*time.Millisecond, 3*time.Second
	dial := make([]grpc.DialOption, 0, 8+len(c.more))
	dial = append(
		dial,
		grpc.WithTransportCredentials(c.creds),
		grpc.WithDefaultServiceConfig(roundRobin),
		grpc.WithDisableRetry(),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: 5 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
	)
	if by != nil {
		dial = append(dial, grpc.WithResolvers(by))
	}
	conn, err := grpc.NewClient(target, append(dial, c.more...)...)
	if err != nil {
		return nil, fmt.Errorf("dedupd's address is of no use: %w", err)
	}
	return conn, nil
}

// dialTarget returns gRPC's name for the addresses, and the resolver that knows
// several.
func dialTarget(addresses []string) (string, resolver.Builder, error) {
	if len(addresses) == 0 {
		return "", nil, errors.New("give at least one address of dedupd, host:port")
	}
	if len(addresses) == 1 && strings.Contains(addresses[0], ":///") {
		return addresses[0], nil, nil
	}
	state := resolver.State{}
	for _, a := range addresses {
		host, _, err := net.SplitHostPort(a)
		if err != nil {
			return "", nil, fmt.Errorf("%q is no address, write host:port", a)
		}
		state.Addresses = append(state.Addresses, resolver.Address{Addr: a, ServerName: host})
	}
	if len(addresses) == 1 {
		return "dns:///" + addresses[0], nil, nil
	}
	by := manual.NewBuilderWithScheme("dedupd")
	by.InitialState(state)
	return "dedupd:///" + addresses[0], by, nil
}
