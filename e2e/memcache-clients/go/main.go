// A session with gomemcache, the way an application uses it; says what is wrong and ends with status 1 if anything is.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"github.com/bradfitz/gomemcache/memcache"
)

func check(ok bool, what string, more ...any) {
	if !ok {
		fmt.Println(append([]any{"wrong:", what}, more...)...)
		os.Exit(1)
	}
}

func main() {
	client := memcache.New(os.Args[1])
	check(client.Ping() == nil, "ping")
	check(client.FlushAll() == nil, "flush_all")
	_, err := client.Get("missing")
	check(errors.Is(err, memcache.ErrCacheMiss), "get of nothing", err)

	check(client.Set(&memcache.Item{Key: "a", Value: []byte("one"), Flags: 42, Expiration: 100}) == nil, "set")
	item, err := client.Get("a")
	check(err == nil && string(item.Value) == "one" && item.Flags == 42, "get", item, err)
	check(errors.Is(client.Add(&memcache.Item{Key: "a", Value: []byte("x")}), memcache.ErrNotStored), "add")
	check(client.Add(&memcache.Item{Key: "b", Value: []byte("two")}) == nil, "add of a new key")
	check(client.Replace(&memcache.Item{Key: "b", Value: []byte("2")}) == nil, "replace")
	check(errors.Is(client.Replace(&memcache.Item{Key: "c"}), memcache.ErrNotStored), "replace of nothing")
	check(client.Append(&memcache.Item{Key: "b", Value: []byte("3")}) == nil, "append")
	check(client.Prepend(&memcache.Item{Key: "b", Value: []byte("1")}) == nil, "prepend")

	items, err := client.GetMulti([]string{"a", "b", "c"})
	check(err == nil && len(items) == 2 && string(items["b"].Value) == "123", "multi-get", items, err)

	number, err := client.Increment("b", 7)
	check(err == nil && number == 130, "incr", number, err)
	number, err = client.Decrement("b", 200)
	check(err == nil && number == 0, "decr", number, err)
	_, err = client.Increment("c", 1)
	check(errors.Is(err, memcache.ErrCacheMiss), "incr of nothing", err)

	first, _ := client.Get("a")
	second, _ := client.Get("a")
	first.Value = []byte("first")
	second.Value = []byte("second")
	check(client.CompareAndSwap(first) == nil, "cas")
	check(errors.Is(client.CompareAndSwap(second), memcache.ErrCASConflict), "cas with an old token")
	check(client.Touch("a", 50) == nil, "touch")
	check(errors.Is(client.Touch("c", 50), memcache.ErrCacheMiss), "touch of nothing")
	check(client.Delete("a") == nil, "delete")
	check(errors.Is(client.Delete("a"), memcache.ErrCacheMiss), "delete of nothing")

	large := bytes.Repeat([]byte("0123456789abcdef"), 60000)
	check(client.Set(&memcache.Item{Key: "large", Value: large}) == nil, "set of 960 KB")
	item, err = client.Get("large")
	check(err == nil && bytes.Equal(item.Value, large), "get of 960 KB", err)
	fmt.Println("all is well")
}
