// Judges a recorded history of registers with porcupine, which searches for an order of all operations
// that explains every read: a second opinion beside `afterglow-testkit check-history`.
//
//	porcupine HISTORY [SECONDS]
//
// HISTORY has one JSON object a line, as that program reads it. A register whose search takes longer
// than SECONDS (60) is undecided. Exit status: 0 every register has such an order or is undecided, 1 one
// has none, 2 the history cannot be read.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/anishathalye/porcupine"
)

// event is one operation as a client saw it: times in nanoseconds on one clock. A value of nil is
// absence, an end of nil an unknown outcome.
type event struct {
	Op    string
	Key   uint64
	Value *uint64
	Start int64
	End   *int64
	Order *uint64
}

// state is what a register holds, and the write that put it there. Where writes have an order, a later
// one stays whatever comes afterwards: the client chose its timestamp.
type state struct {
	value uint64
	there bool
	order uint64
}

// register is porcupine's model of one: a state, and what may follow it.
var register = porcupine.Model{
	Init: func() any { return state{} },
	Step: func(now, input, _ any) (bool, any) {
		before, e := now.(state), input.(event)
		if e.Op == "read" {
			return before.shows(e.Value), before
		}
		if e.Order != nil && *e.Order < before.order {
			return true, before
		}
		return true, after(e)
	},
	Equal: func(a, b any) bool { return a == b },
}

func (s state) shows(value *uint64) bool {
	if value == nil {
		return !s.there
	}
	return s.there && s.value == *value
}

func after(write event) state {
	s := state{there: write.Value != nil}
	if s.there {
		s.value = *write.Value
	}
	if write.Order != nil {
		s.order = *write.Order
	}
	return s
}

// read gives the operations of each register.
func read(path string) (map[uint64][]porcupine.Operation, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	registers := map[uint64][]porcupine.Operation{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for number := 1; lines.Scan(); number++ {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		end := int64(math.MaxInt64)
		if e.End != nil {
			end = *e.End
		}
		registers[e.Key] = append(registers[e.Key], porcupine.Operation{
			ClientId: len(registers[e.Key]), Input: e, Call: e.Start, Return: end,
		})
	}
	return registers, lines.Err()
}

func judge(registers map[uint64][]porcupine.Operation, limit time.Duration) (wrong, undecided []uint64) {
	for key, operations := range registers {
		switch porcupine.CheckOperationsTimeout(register, operations, limit) {
		case porcupine.Illegal:
			wrong = append(wrong, key)
		case porcupine.Unknown:
			undecided = append(undecided, key)
		}
	}
	slices.Sort(wrong)
	slices.Sort(undecided)
	return wrong, undecided
}

func main() {
	limit := 60
	if len(os.Args) == 3 {
		limit, _ = strconv.Atoi(os.Args[2])
	}
	if len(os.Args) < 2 || len(os.Args) > 3 || limit <= 0 {
		fmt.Fprintln(os.Stderr, "usage: porcupine HISTORY [SECONDS]")
		os.Exit(2)
	}
	registers, err := read(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "porcupine cannot read the history:", err)
		os.Exit(2)
	}
	reads, writes := 0, 0
	for _, operations := range registers {
		for _, operation := range operations {
			if operation.Input.(event).Op == "read" {
				reads++
			} else {
				writes++
			}
		}
	}
	wrong, undecided := judge(registers, time.Duration(limit)*time.Second)
	fmt.Printf("porcupine: %d registers, %d reads, %d writes: %d wrong, %d undecided\n",
		len(registers), reads, writes, len(wrong), len(undecided))
	for _, key := range wrong {
		fmt.Printf("register %d has no order that explains its reads\n", key)
	}
	if len(wrong) > 0 {
		os.Exit(1)
	}
}
