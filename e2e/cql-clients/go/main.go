// A client with gocql that does what it is told: see ../README.md for the commands.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
)

const insert = "INSERT INTO rows (k, c, v) VALUES (?, ?, ?)"

// The driver says nothing of UNPREPARED, so whatever comes as an ERROR counts.
type observer struct{ errors, version atomic.Int64 }

func (o *observer) ObserveFrameHeader(_ context.Context, header gocql.ObservedFrameHeader) {
	o.version.Store(int64(header.Version & 0x7F))
	if header.Opcode == 0 {
		o.errors.Add(1)
	}
}

type client struct {
	session  *gocql.Session
	keyspace string
	seen     *observer
}

func connect(host, port, keyspace string, idempotent bool) (*client, error) {
	cluster := gocql.NewCluster(host)
	cluster.Port, _ = strconv.Atoi(port)
	cluster.Keyspace = keyspace
	cluster.Timeout = 15 * time.Second
	cluster.ConnectTimeout = 20 * time.Second
	cluster.Consistency = gocql.LocalQuorum
	cluster.ReconnectInterval = 100 * time.Millisecond
	cluster.ReconnectionPolicy = &gocql.ConstantReconnectionPolicy{MaxRetries: 100, Interval: 100 * time.Millisecond}
	cluster.PoolConfig.HostSelectionPolicy = gocql.TokenAwareHostPolicy(gocql.RoundRobinHostPolicy())
	if idempotent {
		cluster.DefaultIdempotence = true
		cluster.RetryPolicy = &gocql.SimpleRetryPolicy{NumRetries: 5}
	}
	cluster.SslOpts = overTLS()
	seen := &observer{}
	cluster.FrameHeaderObserver = seen
	session, err := cluster.CreateSession()
	return &client{session, keyspace, seen}, err
}

// Over TLS if there is a CA, to a host whose name or address the certificate has.
func overTLS() *gocql.SslOptions {
	authority := os.Getenv("CQL_TLS_CA")
	if authority == "" {
		return nil
	}
	return &gocql.SslOptions{
		CaPath:                 authority,
		CertPath:               os.Getenv("CQL_TLS_CERT"),
		KeyPath:                os.Getenv("CQL_TLS_KEY"),
		EnableHostVerification: true,
	}
}

// A place for a value of this type that may be null: a pointer to a pointer.
func place(info gocql.TypeInfo) any {
	kind := reflect.TypeOf(info.Zero())
	if kind.Kind() != reflect.Pointer {
		kind = reflect.PointerTo(kind)
	}
	return reflect.New(kind).Interface()
}

// The first row as the driver decodes it, without its tuples: gocql 2.1 reads them, in parts, and cannot bind them.
func (c *client) row(text string, values ...any) (names []string, row []any, err error) {
	iter := c.session.Query(text, values...).Iter()
	var places []any
	for _, column := range iter.Columns() {
		if tuple, ok := column.TypeInfo.(gocql.TupleTypeInfo); ok {
			for _, element := range tuple.Elems {
				places = append(places, place(element))
			}
		} else {
			names = append(names, column.Name)
			places = append(places, place(column.TypeInfo))
		}
	}
	if !iter.Scan(places...) {
		return names, nil, iter.Close()
	}
	for _, column := range iter.Columns() {
		if tuple, ok := column.TypeInfo.(gocql.TupleTypeInfo); ok {
			places = places[len(tuple.Elems):]
		} else {
			row = append(row, reflect.ValueOf(places[0]).Elem().Interface())
			places = places[1:]
		}
	}
	return names, row, iter.Close()
}

func (c *client) batch(k, n int) error {
	batch := c.session.Batch(gocql.LoggedBatch)
	for i := range n {
		batch.Query(insert, k, i, fmt.Sprintf("b%d", i))
	}
	batch.Query(fmt.Sprintf("INSERT INTO rows (k, c, v) VALUES (%d, %d, 'text')", k, n))
	return batch.Exec()
}

func (c *client) page(k, size int) (rows, pages int, err error) {
	for state := []byte(nil); ; {
		iter := c.session.Query("SELECT c FROM rows WHERE k = ?", k).PageSize(size).PageState(state).Iter()
		state = iter.PageState()
		pages++
		for found := 0; iter.Scan(&found); rows++ {
			if found != rows {
				return rows, pages, fmt.Errorf("row %d in place %d", found, rows)
			}
		}
		if err := iter.Close(); err != nil || len(state) == 0 {
			return rows, pages, err
		}
	}
}

func (c *client) copy(table string, from, to int) (int, error) {
	names, row, err := c.row("SELECT * FROM "+table+" WHERE k = ?", from)
	if err != nil || row == nil {
		return 0, fmt.Errorf("no row: %v", err)
	}
	row[slices.Index(names, "k")] = to
	marks := strings.TrimSuffix(strings.Repeat("?, ", len(names)), ", ")
	text := fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s)", table, strings.Join(names, ", "), marks)
	return len(names), c.session.Query(text, row...).Exec()
}

func (c *client) columns(table string) ([]string, error) {
	keyspace, err := c.session.KeyspaceMetadata(c.keyspace)
	names := []string{}
	if err == nil && keyspace.Tables[table] != nil {
		for name := range keyspace.Tables[table].Columns {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, err
}

func (c *client) hosts() []string {
	known := []string{}
	for _, host := range c.session.GetHosts() {
		known = append(known, net.JoinHostPort(host.ConnectAddress().String(), strconv.Itoa(host.Port())))
	}
	return known
}

func (c *client) run(name string, arguments []any) (any, error) {
	text := func(i int) string { return arguments[i].(string) }
	number := func(i int) int { return int(arguments[i].(float64)) }
	switch name {
	case "hosts":
		return c.hosts(), nil
	case "version":
		return c.seen.version.Load(), nil
	case "unprepared":
		return c.seen.errors.Load(), nil
	case "ddl":
		return true, c.session.Query(text(0)).Exec()
	case "write":
		return true, c.session.Query(insert, number(0), number(1), text(2)).Exec()
	case "read":
		names, row, err := c.row("SELECT * FROM rows WHERE k = ? AND c = ?", number(0), number(1))
		return []any{names, row}, err
	case "batch":
		return true, c.batch(number(0), number(1))
	case "page":
		rows, pages, err := c.page(number(0), number(1))
		return []int{rows, pages}, err
	case "cas":
		query := c.session.Query(insert+" IF NOT EXISTS", number(0), number(1), text(2))
		return query.MapScanCAS(map[string]any{})
	case "columns":
		return c.columns(text(0))
	case "copy":
		return c.copy(text(0), number(1), number(2))
	}
	return nil, fmt.Errorf("no such command: %s", name)
}

func main() {
	c, err := connect(os.Args[1], os.Args[2], os.Args[3], slices.Contains(os.Args, "--idempotent"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	answers := json.NewEncoder(os.Stdout)
	answers.Encode(map[string]any{"ok": "connected"})
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var command []any
		if err := json.Unmarshal(lines.Bytes(), &command); err != nil {
			panic(err)
		}
		if answer, err := c.run(command[0].(string), command[1:]); err != nil {
			answers.Encode(map[string]any{"error": err.Error()})
		} else {
			answers.Encode(map[string]any{"ok": answer})
		}
	}
	c.session.Close()
}
