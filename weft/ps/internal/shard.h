// The state of one shard: its pieces of the tensors, the workers and the answers of the last
// commands. Deterministic: servers that apply the same commands in the same order have the same
// bits. It has no threads, sockets or clock.
//
//   push ── check ──┬─ staleness 0: buffer of the step ── all workers pushed ── mean ──┐
//                   └─ else ─────────────────────── delay compensation ────────────────┴─> update
//
// Pushed rows of embedding tables go the same way. With staleness 0, they belong to the step that
// the worker's next push ends, and their memory is taken when they are pushed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "weft/compress/codec.h"
#include "weft/ps/internal/request.h"
#include "weft/ps/internal/tables.h"

namespace weft::ps::internal {

class Shard {
 public:
  // `memory_bytes`: most bytes of values, optimizer states, rows and buffered pushes.
  // `remembers`: false breaks a rule on purpose, for a test: repeated commands are applied again.
  explicit Shard(std::uint64_t memory_bytes, bool remembers = true, TableFiles files = {});

  // How a command relates to those that its client has given before.
  enum class Turn { kNext, kRepeated, kEarly };
  Turn turn(const Request& command) const;
  bool has_applied(std::uint64_t client, std::uint64_t sequence) const;
  // Applies a command whose turn is kNext, or one of the server, and returns its answer. An answer
  // kRefused has not changed anything else. Throws Error if this server lacks memory, or the folder
  // for the files of a table; nothing has changed then, and another server may not lack it.
  Answer apply(const Request& command);
  // Answer of a repeated command.
  Answer answered(const Request& command) const;

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
  bool marks() const {
    return is_defined_ && options_.delay_compensation > 0 && !options_.pull_deltas;
  }

  ShardStats stats() const;
  // Workers that count, with the client that each belongs to.
  std::map<std::uint32_t, std::uint64_t> workers() const;
  bool had_workers() const { return !workers_.empty(); }
  std::uint64_t version() const { return version_; }

  // Values, rows, optimizer state and steps, for a checkpoint; kLoad takes them. As begin_state(),
  // in pieces. Each piece is preceded by its size (u64) in what kLoad takes.
  std::string begin_save();
  std::string save();
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
  struct Slot {
    std::string name;
    std::int64_t first = 0;  // in the tensor
    std::int64_t count = 0;
    std::int64_t offset = 0;  // in values_
    std::int64_t steps = 0;   // updates of this piece
  };
  struct Worker {
    std::uint64_t client = 0;
    std::int64_t clock = 0;  // pushes
    bool counts = false;
    // Values that the worker has from its last pull, for delay compensation and differences.
    std::vector<float> pulled;
  };
  struct Client {
    std::uint64_t last = 0;
    std::map<std::uint64_t, Answer> answers;  // by sequence
  };
  // A push that waits for the other workers.
  struct Buffered {
    std::vector<std::uint32_t> keys;
    std::vector<float> values;
    double lr = -1;
  };

  void take_state(std::string_view bytes, bool has_rows);
  Answer change(const Request& command);
  Answer define(const Request& command);
  Answer join(const Request& command);
  Answer leave(std::uint32_t worker, std::uint64_t client);
  Answer mark(const Request& command);
  Answer push(const Request& command);
  Answer pull_delta(const Request& command);
  Answer load(const Request& command);

  // Rows (shard_rows.cc).
  Answer push_rows(const Request& command);
  Answer evict(const Request& command);
  Answer check_rows_pull(const Request& pull) const;
  Answer check_table(const Request& request) const;
  Answer check_row_values(const Request& push, std::span<const std::uint64_t> keys,
                          std::span<const float> values) const;
  Answer check_row_room(const Request& push, std::span<const std::uint64_t> keys) const;
  Answer check_rows_lr(const Request& push) const;
  Answer load_rows(std::string_view head, const std::vector<std::string_view>& pieces);
  Answer full_of_files(const std::string& what, std::uint64_t bytes) const;
  void apply_rows(std::int64_t clock, std::size_t workers);
  void drop_unfinished_rows(std::uint32_t worker);

  std::vector<std::uint32_t> keys_of(const Request& request) const;
  std::int64_t count_of(const std::vector<std::uint32_t>& keys) const;
  // The refusal of a key or a worker that this shard does not know; kDone if there is none.
  Answer check_keys(const Request& request) const;
  Answer check_worker(const Request& request) const;
  Answer check_lr(const Request& push) const;
  // Decodes the payload of a push. Returns null, with the refusal, if it has the wrong length.
  const float* decode(const Request& push, const std::vector<std::uint32_t>& keys, Answer& refusal);
  Answer check_finite(const Request& push, const std::vector<std::uint32_t>& keys,
                      const float* values) const;
  std::uint64_t memory_in_use() const { return used_bytes_ + tables_.memory_bytes(); }
  bool has_room(std::uint64_t bytes) const { return memory_in_use() + bytes <= memory_bytes_; }
  Answer full(const std::string& what, std::uint64_t bytes) const;

  std::optional<std::int64_t> slowest() const;
  void finish_rounds();
  void apply_round(std::int64_t clock, std::map<std::uint32_t, Buffered>& round);
  void update(Slot& slot, const float* gradient, double lr, const Worker* worker);
  void compensate(const Slot& slot, std::int64_t begin, std::span<float> gradient,
                  const Worker& worker);
  void make_codecs();
  bool is_consistent() const;
  std::uint64_t worker_bytes() const;

  std::uint64_t memory_bytes_;
  bool remembers_;
  TableFiles files_;

  bool is_defined_ = false;
  Options options_;
  std::vector<Slot> slots_;
  std::vector<float> values_;
  std::vector<std::vector<float>> states_;  // of the update rule
  std::vector<float> mean_square_;          // of adaptive compensation
  std::map<std::uint32_t, Worker> workers_;
  std::map<std::uint64_t, Client> clients_;
  std::map<std::int64_t, std::map<std::uint32_t, Buffered>> rounds_;  // by clock, by worker
  // Rows of the steps that wait, also of those that their worker has not ended yet.
  std::map<std::int64_t, std::map<std::uint32_t, std::vector<RowPush>>> row_rounds_;
  std::int64_t last_clock_ = 0;  // the clock at which a worker joins if no other one counts
  std::uint64_t version_ = 0;
  Tables tables_;
  std::uint64_t used_bytes_ = 0;  // without tables
  std::array<std::uint64_t, ShardStats::kBuckets> staleness_{};

  // Not part of the state.
  std::unique_ptr<compress::Codec> push_codec_, pull_codec_, delta_codec_;
  std::uint64_t push_seed_ = 1, delta_seed_ = 1;
  std::vector<float> scratch_;
};

// The codec of a text as in Options. nullptr: "none". Throws as compress::parse().
std::unique_ptr<compress::Codec> codec_of(const std::string& text);
// Bytes of a push's tensor through a codec are preceded by their number, and padded to 4.
std::string encode_values(const compress::Codec& codec, std::span<const float> values,
                          const compress::Draw& draw, float* residual);
// Adds the values of the next such encoding, and removes it from the bytes. Throws
// Error(kCorrupt).
void decode_values(const compress::Codec& codec, std::string_view& bytes,
                   const compress::Draw& draw, std::span<float> values);
// The draw of a push: worker and client agree on it.
compress::Draw draw_of(std::uint64_t seed, const Request& push, std::uint32_t key);

}  // namespace weft::ps::internal
