// Requests of clients to a shard and their answers, as structures and as bytes.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weft/base/error.h"
#include "weft/ps/options.h"

namespace weft::ps::internal {

enum class Op : std::uint8_t {
  // Commands: they change the shard, and are applied once, in the order of each client.
  kDefine,
  kJoin,
  kLeave,
  kPush,
  kLoad,
  kPushRows,   // of an embedding table; payload: rows.h
  kEvict,      // rows of a table; payload: the age, the first and the last hash of their keys
  kPullDelta,  // differences to what the worker has; the server keeps what it will have then
  // Commands of the server itself. kDrop and kMark have no client.
  kDrop,    // a worker does not answer
  kMark,    // the worker has pulled: delay compensation keeps the values
  kRefuse,  // in the place of a client's command for which a server had no memory or no file
  // Reads: a repeated one reads again.
  kPull,
  kPullRows,
  kStats,
  kSave,
};
constexpr Op kLastOp = Op::kSave;
constexpr bool is_command(Op op) { return op < Op::kPull; }
constexpr bool is_of_server(Op op) { return op >= Op::kDrop && op <= Op::kRefuse; }

inline constexpr std::uint32_t kNoWorker = ~0u;
// As the only key of a request: no key at all. The push of such a request is only a step.
inline constexpr std::uint32_t kNoKeys = ~0u;

struct Request {
  Op op = Op::kPull;
  std::uint32_t shard = 0;
  std::uint32_t worker = kNoWorker;
  // Number of the request, by which the client knows the answer.
  std::uint64_t id = 0;
  // Random number of the client, and how many commands it has given, this one included. A read is
  // served after these.
  std::uint64_t client = 0;
  std::uint64_t sequence = 0;
  // The client has the answers to this many commands. The server forgets them.
  std::uint64_t done = 0;
  // Number of the newest view of the shard that the client knows.
  std::uint64_t view = 0;
  // Push: version of the values that the worker pulled last. kPullDelta: 1 for values, 0 for
  // differences. kSave: number of the piece, from 0.
  std::uint64_t version = 0;
  // Push: learning rate of its update. Below 0: that of the rule.
  double lr = -1;
  // Push: the payload has float32 values, whatever the codec of pushes.
  bool exact = false;
  // Numbers of pieces of this shard; empty: all. For rows: the number of their table.
  std::vector<std::uint32_t> keys;
  // Valid during the call only.
  std::string_view payload;
  // The payload of a push, or the place of the pulled values, in the memory that the client shares.
  bool in_memory = false;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

enum class Outcome : std::uint8_t {
  kDone,
  kRefused,    // code and text say why
  kElsewhere,  // another server serves the shard, or none yet
};

struct Answer {
  std::uint64_t id = 0;
  Outcome outcome = Outcome::kDone;
  Errc code = Errc::kInvalidArgument;
  std::string text;
  std::uint64_t version = 0;  // updates of the shard
  std::int64_t clock = 0;     // steps of the worker
  std::string payload;
};

// An answer kRefused.
Answer refuse(Errc code, std::string text);
inline Answer invalid(std::string text) { return refuse(Errc::kInvalidArgument, std::move(text)); }
inline bool is_refused(const Answer& answer) { return answer.outcome == Outcome::kRefused; }

// The beginning of a request's bytes, up to its payload. Its size is a multiple of 16, so that the
// payload is aligned.
std::string encode_head(const Request& request, std::size_t payload_bytes);
std::string encode(const Request& request);
// The payload refers to `bytes`. Throws Error(kCorrupt).
Request decode_request(std::string_view bytes);

// The beginning of an answer's bytes, up to its payload; a multiple of 16 bytes.
std::string encode_head(const Answer& answer);
std::string encode(const Answer& answer);
// With `payload`, it refers to the bytes, and Answer::payload stays empty.
Answer decode_answer(std::string_view bytes, std::string_view* payload = nullptr);

// Payload of kDefine.
struct Definition {
  struct Part {
    std::string name;
    std::int64_t first = 0;
    std::int64_t count = 0;
    bool operator==(const Part&) const = default;
  };
  Options options;
  std::vector<Part> parts;
  std::string values;  // float32, of all parts
  std::vector<TableSpec> tables;
};
std::string encode(const Definition& definition);
Definition decode_definition(std::string_view bytes);
std::string encode_options(const Options& options);
Options decode_options(std::string_view bytes);
std::string encode_table(const TableSpec& table);
TableSpec decode_table(std::string_view bytes);

// Payload of the answer to kStats.
struct ShardStats {
  // Number of pushes by the number of updates between the pull and the push; the last element
  // counts all larger ones. Zero in sync mode.
  static constexpr std::size_t kBuckets = 33;
  std::array<std::uint64_t, kBuckets> staleness{};
  std::uint64_t updates = 0;
  std::uint64_t memory_bytes = 0;
  std::uint32_t workers = 0;
  std::uint64_t rows = 0;        // of embedding tables
  std::uint64_t file_bytes = 0;  // of those in files
};
std::string encode(const ShardStats& stats);
ShardStats decode_stats(std::string_view bytes);

}  // namespace weft::ps::internal
