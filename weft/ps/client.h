// The client of a parameter server, in a worker: pushes gradients or deltas, pulls values.
//
//   ps::Client client({.directory = &directory, .servers = 2, .worker = rank});
//   client.define({{"weight", w}, {"bias", b}}, {.rule = kernels::Sgd{.lr = 0.1}});
//   client.join();
//   for (…) {
//     client.wait(client.pull());                  // client.value("weight")
//     … compute, into client.gradient("weight") and client.gradient("bias") …
//     client.wait(client.push());
//   }
//   client.leave();
//
// Embedding tables are defined with the tensors:
//
//   client.define({{"bias", b}}, {.staleness = ps::kAsync}, {{.name = "words", .row_floats = 64}});
//   client.wait(client.pull_rows("words", keys, rows));
//   client.push_rows("words", keys, gradients);
//   client.wait(client.push());                    // the step ends
//
// Gradients are written to memory that the servers of this host read in place, and servers write
// pulled values there. Over TCP, messages carry both. Requests may be outstanding while others are
// made. If a server is lost, requests are sent to its backup, and each push is applied once.
//
// One thread at a time uses a client. Calls that wait end at their deadline with Error(kTimeout).
// After an error of a push or of join(), call join() again before the next push.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weft/ps/options.h"
#include "weft/ps/view.h"

namespace weft::ps {

struct ClientOptions {
  // Must outlive the client. Null: that of the servers of this job (weft run --servers N), with
  // their number and the job's secret.
  Directory* directory = nullptr;
  std::uint32_t servers = 1;  // Number of servers, as in ServerOptions.
  // Number of this worker. None: the client only pulls, and never waits for workers.
  std::optional<std::uint32_t> worker;
  std::string job;                                  // Name of the job, as in ServerOptions.
  std::optional<std::array<std::byte, 32>> secret;  // Secret of the job.
  bool local = true;                                // false: use TCP also within a host.
  int pipeline = 2;  // Pushes that may be outstanding: 1 to 64, each with memory of its own.
  // Deadline of calls without one.
  std::chrono::milliseconds timeout{30'000};
};

// A tensor with its first values.
struct Tensor {
  std::string name;
  std::span<const float> values;
};

struct Stats {
  // Pushes by the number of updates between the worker's pull and its push; the last element
  // counts all larger ones. A push counts once for each shard.
  std::array<std::uint64_t, 33> staleness{};
  std::uint64_t updates = 0;       // Updates of the shard that has the most.
  std::uint64_t memory_bytes = 0;  // Memory of all shards, without backups.
  std::uint64_t file_bytes = 0;    // Files of mapped tables, without backups.
  std::uint64_t rows = 0;          // Rows of embedding tables, without backups.
  std::uint32_t workers = 0;       // Workers that count on every shard.
};

// Payload that a client has moved to and from servers, requests that were repeated included.
struct Moved {
  std::uint64_t message_bytes = 0;  // Bytes in messages: gradients, keys and values.
  std::uint64_t shared_bytes = 0;   // Bytes in memory that servers of this host use in place.
};

class Client {
 public:
  using Ticket = std::uint64_t;

  explicit Client(ClientOptions options);
  // Closes the connections without a word. The servers count a worker that has not left as lost.
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Creates the tensors and tables, at least one. The values of the first client count. Every
  // client defines the same ones with the same options; otherwise Error(kInvalidArgument) says what
  // differs. Error(kUnavailable): a server is full. Call it once, and again only if it was refused
  // before a server was asked (a name twice, options that cannot be).
  void define(const std::vector<Tensor>& tensors, const Options& options,
              const std::vector<TableSpec>& tables = {});
  // This worker counts from now on: in sync mode, the others wait for its pushes.
  void join();
  // The others do not wait for this worker any more.
  void leave();

  // Where to write the gradient or delta of a tensor for the next push; it has any values before.
  // Waits if as many pushes as `pipeline` are outstanding. Throws the refusal of an earlier push
  // that nobody has waited for.
  std::span<float> gradient(const std::string& tensor);
  // Begins to push what gradient() has been given, for these tensors; empty: all. A push is one
  // step of the worker. `lr`: learning rate of this update; below 0: that of the rule. With
  // staleness 0, the workers of a step must pass the same one: wait() throws kInvalidArgument for
  // another, and for a rate with deltas, and nothing changes. Throws Error(kInvalidArgument) for an
  // unknown name, and for NaN or infinity, which it names; nothing is sent then.
  Ticket push(const std::vector<std::string>& tensors = {}, double lr = -1,
              Coding coding = Coding::kCodec);
  // Begins to pull these tensors; empty: all. With a bound of the staleness, the answer comes when
  // the slowest worker is near enough. One pull at a time. With Options::pull_deltas, pushes wait
  // for an outstanding pull. kExact with a pull_codec needs pull_deltas.
  Ticket pull(const std::vector<std::string>& tensors = {}, Coding coding = Coding::kCodec);

  // Begins to push a gradient (or delta) for each key: keys.size() rows, one after the other. They
  // may be changed after the call. Rows belong to the step that the next push() ends: with
  // staleness 0, they wait for it, and a worker that leaves before takes them with it. Otherwise,
  // they are applied at once. Gradients of a key that repeats are summed and make one update; only
  // if a call has more than 4 MiB for a server, they may make several. `lr` as for push(), one for
  // each table and step; not with rules add and ftrl. Throws Error(kInvalidArgument) for an unknown
  // table, another size, and for NaN or infinity, which it names; nothing is sent then.
  Ticket push_rows(const std::string& table, std::span<const std::uint64_t> keys,
                   std::span<const float> gradients, double lr = -1);
  // Begins to pull the rows of these keys, in their order, which may repeat. `rows` must stay until
  // wait() returns or throws, or this call throws; pull again after kTimeout. A pull makes no rows.
  // It waits for slow workers as pull().
  Ticket pull_rows(const std::string& table, std::span<const std::uint64_t> keys,
                   std::span<float> rows);
  // Removes the rows that were not pushed in the last `age` steps, and waits for it.
  void evict_rows(const std::string& table, std::uint64_t age);

  // Waits until the request is answered. Throws the server's refusal: kInvalidArgument,
  // kUnavailable (full), kAborted (the worker does not count any more).
  void wait(Ticket ticket);
  void wait(Ticket ticket, Deadline deadline);
  // True if wait() would return at once. Makes progress.
  bool is_done(Ticket ticket);

  // The values of the last complete pull. They stay until the pull after the next one begins.
  std::span<const float> value(const std::string& tensor) const;
  // Values, rows, optimizer state and steps of all shards, for a checkpoint; workers may go on
  // meanwhile. Each shard is saved between two of its updates. In sync mode, save between two steps
  // to have all shards at the same step.
  std::string save();
  // Replaces them by what save() returned, before the first worker joins. The number of servers,
  // tensors, tables and kinds of the update rules must be the same; otherwise
  // Error(kInvalidArgument).
  void load(const std::string& saved);

  // Number of steps of this worker, as the servers count them.
  std::int64_t clock() const;
  Stats stats();
  // Since the client was made. Asks nobody.
  Moved moved() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::ps
