// The state of one shard, and the commands that change it. Servers that apply the same commands in
// the same order have the same bits. It has no threads, sockets or clock.
//
//   tensors   values, update rule, codecs          workers   steps, and who is waited for
//   tables    rows of embedding tables             rounds    pushes that wait for a step
//                                                  applied   commands and their answers
//
//   push ── check ──┬─ staleness 0: buffer of the step ── all workers pushed ── mean ──┐
//                   └─ else ─────────────────────── delay compensation ────────────────┴─> update
//
// Pushed rows of embedding tables go the same way. With staleness 0, they belong to the step that
// the worker's next push ends, and their memory is taken when they are pushed.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weft/ps/internal/applied.h"
#include "weft/ps/internal/request.h"
#include "weft/ps/internal/rounds.h"
#include "weft/ps/internal/tables.h"
#include "weft/ps/internal/tensors.h"
#include "weft/ps/internal/workers.h"

namespace weft::ps::internal {

class Shard {
 public:
  // `memory_bytes`: most bytes of values, optimizer states, rows and buffered pushes.
  // `remembers`: false breaks a rule on purpose, for a test: repeated commands are applied again.
  explicit Shard(std::uint64_t memory_bytes, bool remembers = true, TableFiles files = {});

  // How a command relates to those that its client has given before.
  enum class Turn { kNext, kRepeated, kEarly };
  Turn turn(const Request& command) const;
  bool has_applied(std::uint64_t client, std::uint64_t sequence) const {
    return applied_.has(client, sequence);
  }
  // Applies a command whose turn is kNext, or one of the server, and returns its answer. An answer
  // kRefused has not changed anything else. Throws Error if this server lacks memory, or the folder
  // for the files of a table; nothing has changed then, and another server may not lack it.
  Answer apply(const Request& command);
  // Answer of a repeated command.
  Answer answered(const Request& command) const { return applied_.answer(command); }

  // True if the bound of the staleness lets this worker pull now. Clients that are not workers
  // never wait.
  bool is_ready(const Request& pull) const;
  // Checks a pull, of tensors or of rows. An answer kDone has version and clock, and no payload.
  Answer check_pull(const Request& pull) const;
  // Bytes of the pulled values.
  std::size_t pull_bytes(const Request& pull) const;
  // Writes the values that a checked pull asks for, through the codec of pulls.
  void read(const Request& pull, std::span<std::byte> out) const;
  // True if a pull must be followed by kMark.
  bool marks() const { return tensors_.options().delay_compensation > 0; }

  ShardStats stats() const;
  // Workers that count, with the client that each belongs to.
  std::map<std::uint32_t, std::uint64_t> workers() const { return workers_.counting(); }
  bool had_workers() const { return !workers_.is_empty(); }
  std::uint64_t version() const { return version_; }
  // Memory without tables: values, optimizer state, pulled values, pushes that wait.
  std::uint64_t bytes() const { return tensors_.bytes() + workers_.bytes() + rounds_.bytes(); }

  // Values, rows, optimizer state and steps, for a checkpoint; kLoad takes them. As begin_state(),
  // in pieces. Each piece is preceded by its size (u64) in what kLoad takes.
  std::string begin_save();
  // The whole state as bytes, equal on servers that applied the same commands.
  std::string snapshot() const;
  // The same in pieces of about 1 MiB, while commands go on: begin_state() fixes the moment, and
  // returns all but the rows. Then rows come; none: there are no more. Throws Error(kAborted) if
  // snapshot() was called since. A second begin_state() or begin_save() ends the first one.
  std::string begin_state() { return snapshot_without_rows().append(tables_.begin_pieces()); }
  std::optional<std::string> next_rows() { return tables_.next_piece(); }
  // Replaces the state by these pieces. It may be used after finish_state(). Throw as restore().
  void receive_state(std::string_view head) { take_state(head, false); }
  void receive_rows(std::string_view piece) { tables_.take_piece(piece); }
  void finish_state() { tables_.finish_pieces(); }
  // The same without the rows of tables, whose order depends on the past of the server.
  std::string snapshot_without_rows() const;
  const Tables& tables() const { return tables_; }
  // Replaces the state. Throws Error(kCorrupt), and as apply().
  void restore(std::string_view bytes) { take_state(bytes, true); }

 private:
  Answer change(const Request& command);
  Answer define(const Request& command);
  Answer join(const Request& command);
  Answer leave(const Request& command);
  Answer push(const Request& command);
  Answer pull_delta(const Request& command);
  Answer load(const Request& command);
  Answer load_rows(std::string_view head, const std::vector<std::string_view>& pieces);
  void take_state(std::string_view bytes, bool has_rows);

  // Rows (shard_rows.cc).
  Answer push_rows(const Request& command);
  Answer check_row_room(const Request& push, std::span<const std::uint64_t> keys) const;
  Answer full_of_files(const std::string& what, std::uint64_t bytes) const;

  Answer check_keys(const Request& request) const;
  std::uint64_t memory_in_use() const { return bytes() + tables_.memory_bytes(); }
  bool has_room(std::uint64_t bytes) const { return memory_in_use() + bytes <= memory_bytes_; }
  Answer full(const std::string& what, std::uint64_t bytes) const;
  // Version of the shard, steps of the worker, and number of the request.
  Answer stamped(Answer answer, const Request& request) const;
  void finish_rounds();

  std::uint64_t memory_bytes_;
  bool remembers_;
  TableFiles files_;
  Tensors tensors_;
  Tables tables_;
  Workers workers_;
  Rounds rounds_;
  Applied applied_;
  std::uint64_t version_ = 0;
  std::array<std::uint64_t, ShardStats::kBuckets> staleness_{};
};

}  // namespace weft::ps::internal
