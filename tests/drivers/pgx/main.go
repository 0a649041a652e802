// pgx, whose default keeps prepared statements in a cache for each connection. Prints `ok NAME` or `FAIL NAME why`.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// connect takes libpq's variables from the environment; `options` are added to them.
func connect(ctx context.Context, options string) (*pgx.Conn, error) {
	return pgx.Connect(ctx, options)
}

func check(condition bool, what string) error {
	if condition {
		return nil
	}
	return errors.New(what)
}

func with(options string, work func(context.Context, *pgx.Conn) error) error {
	ctx, end := context.WithTimeout(context.Background(), 30*time.Second)
	defer end()
	connection, err := connect(ctx, options)
	if err != nil {
		return err
	}
	defer connection.Close(context.Background())
	return work(ctx, connection)
}

// prepared: the same statement by each way of running it, on clients at the same time.
func prepared() error {
	modes := []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"}
	var group sync.WaitGroup
	problems := make(chan error, 2*len(modes))
	for number := range 2 * len(modes) {
		group.Add(1)
		go func() {
			defer group.Done()
			problems <- with("sslmode=disable default_query_exec_mode="+modes[number%len(modes)], func(ctx context.Context, c *pgx.Conn) error {
				for n := range 30 {
					var got int
					if err := c.QueryRow(ctx, "select $1::int + $2::int", n, number).Scan(&got); err != nil {
						return err
					}
					if got != n+number {
						return fmt.Errorf("got %d, expected %d", got, n+number)
					}
				}
				return nil
			})
		}()
	}
	group.Wait()
	close(problems)
	for problem := range problems {
		if problem != nil {
			return problem
		}
	}
	return nil
}

func batch() error {
	return with("sslmode=disable", func(ctx context.Context, c *pgx.Conn) error {
		queries := &pgx.Batch{}
		for n := range 100 {
			queries.Queue("select $1::int", n)
		}
		results := c.SendBatch(ctx, queries)
		for n := range 100 {
			var got int
			if err := results.QueryRow().Scan(&got); err != nil {
				return err
			}
			if got != n {
				return fmt.Errorf("got %d, expected %d", got, n)
			}
		}
		return results.Close()
	})
}

func pipeline() error {
	return with("sslmode=disable", func(ctx context.Context, c *pgx.Conn) error {
		pipe := c.PgConn().StartPipeline(ctx)
		pipe.SendQueryParams("select 1", nil, nil, nil, nil)
		if err := pipe.Sync(); err != nil {
			return err
		}
		pipe.SendQueryParams("select 1/0", nil, nil, nil, nil)
		pipe.SendQueryParams("select 2", nil, nil, nil, nil)
		if err := pipe.Sync(); err != nil {
			return err
		}
		pipe.SendQueryParams("select 3", nil, nil, nil, nil)
		if err := pipe.Sync(); err != nil {
			return err
		}
		seen := []string{}
		for syncs := 0; syncs < 3; {
			result, err := pipe.GetResults()
			if err != nil {
				seen = append(seen, err.(*pgconn.PgError).Code)
				continue
			}
			switch r := result.(type) {
			case *pgconn.ResultReader:
				read := r.Read()
				if read.Err != nil {
					seen = append(seen, read.Err.(*pgconn.PgError).Code)
				} else {
					seen = append(seen, string(read.Rows[0][0]))
				}
			case *pgconn.PipelineSync:
				syncs++
			}
		}
		if err := pipe.Close(); err != nil {
			return err
		}
		return check(strings.Join(seen, " ") == "1 22012 3", fmt.Sprint(seen))
	})
}

func copying() error {
	return with("sslmode=disable", func(ctx context.Context, c *pgx.Conn) error {
		if _, err := c.Exec(ctx, "create temp table copied (i int, t text)"); err != nil {
			return err
		}
		rows := [][]any{}
		for n := range 5000 {
			rows = append(rows, []any{n, fmt.Sprint("row ", n)})
		}
		count, err := c.CopyFrom(ctx, pgx.Identifier{"copied"}, []string{"i", "t"}, pgx.CopyFromRows(rows))
		if err != nil || count != 5000 {
			return fmt.Errorf("in: %d %v", count, err)
		}
		var out bytes.Buffer
		tag, err := c.PgConn().CopyTo(ctx, &out, "copy copied to stdout")
		if err != nil {
			return err
		}
		_, err = c.PgConn().CopyFrom(ctx, strings.NewReader("not a number\tx\n"), "copy copied from stdin")
		var failure *pgconn.PgError
		if !errors.As(err, &failure) || failure.Code != "22P02" {
			return fmt.Errorf("a wrong row: %v", err)
		}
		return check(tag.RowsAffected() == 5000 && bytes.Count(out.Bytes(), []byte("\n")) == 5000, "out")
	})
}

func cancel() error {
	return with("sslmode=disable", func(ctx context.Context, c *pgx.Conn) error {
		go func() {
			time.Sleep(500 * time.Millisecond)
			_ = c.PgConn().CancelRequest(context.Background())
		}()
		started := time.Now()
		_, err := c.Exec(ctx, "select pg_sleep(20)")
		var failure *pgconn.PgError
		if !errors.As(err, &failure) || failure.Code != "57014" {
			return fmt.Errorf("not cancelled: %v", err)
		}
		if time.Since(started) > 10*time.Second {
			return errors.New("late")
		}
		return c.Ping(ctx)
	})
}

func tlsRequire() error {
	return with("sslmode=require", func(ctx context.Context, c *pgx.Conn) error { return c.Ping(ctx) })
}

func tlsVerifyFull() error {
	err := with("host=localhost sslmode=verify-full sslrootcert="+os.Getenv("TEST_CA"), func(ctx context.Context, c *pgx.Conn) error { return c.Ping(ctx) })
	if err != nil {
		return err
	}
	err = with("host=localhost sslmode=verify-full sslrootcert="+os.Getenv("TEST_OTHER_CA"), func(ctx context.Context, c *pgx.Conn) error { return c.Ping(ctx) })
	return check(err != nil, "a certificate of another authority was taken")
}

func transactions() error {
	return with("sslmode=disable", func(ctx context.Context, c *pgx.Conn) error {
		return pgx.BeginTxFunc(ctx, c, pgx.TxOptions{IsoLevel: pgx.Serializable}, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "create temp table tx (i int) on commit drop"); err != nil {
				return err
			}
			inner, err := tx.Begin(ctx)
			if err != nil {
				return err
			}
			if _, err := inner.Exec(ctx, "insert into tx values (1)"); err != nil {
				return err
			}
			if err := inner.Rollback(ctx); err != nil {
				return err
			}
			var count int
			if err := tx.QueryRow(ctx, "select count(*) from tx").Scan(&count); err != nil {
				return err
			}
			return check(count == 0, "the savepoint was not rolled back")
		})
	})
}

func failing() error {
	return with("sslmode=disable", func(ctx context.Context, c *pgx.Conn) error {
		for range 3 {
			_, err := c.Exec(ctx, "select 1 / $1::int", 0)
			var failure *pgconn.PgError
			if !errors.As(err, &failure) || failure.Code != "22012" {
				return fmt.Errorf("not the expected error: %v", err)
			}
			if err := c.Ping(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

func notifications() error {
	return with("sslmode=disable", func(ctx context.Context, listener *pgx.Conn) error {
		return with("sslmode=disable", func(ctx context.Context, sender *pgx.Conn) error {
			if _, err := listener.Exec(ctx, "listen pgx_test"); err != nil {
				return err
			}
			if _, err := sender.Exec(ctx, "notify pgx_test, 'hello'"); err != nil {
				return err
			}
			heard, err := listener.WaitForNotification(ctx)
			if err != nil {
				return err
			}
			return check(heard.Payload == "hello", heard.Payload)
		})
	})
}

func main() {
	failed := false
	for _, test := range []struct {
		name string
		run  func() error
	}{
		{"prepared", prepared}, {"batch", batch}, {"pipeline", pipeline}, {"copy", copying}, {"cancel", cancel}, {"tls_require", tlsRequire},
		{"tls_verify_full", tlsVerifyFull}, {"transactions", transactions}, {"error", failing}, {"notifications", notifications},
	} {
		if err := test.run(); err != nil {
			failed = true
			fmt.Printf("FAIL %s %s\n", test.name, strings.ReplaceAll(err.Error(), "\n", " "))
		} else {
			fmt.Printf("ok %s\n", test.name)
		}
	}
	if failed {
		os.Exit(1)
	}
}
