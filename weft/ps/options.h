// What a parameter server does with the pushes of the workers: update rule, staleness bound,
// codecs. All workers of a server give the same options.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "weft/optim/update_rule.h"
#include "weft/ps/table/rule.h"

namespace weft::ps {

// Values of Options::staleness.
inline constexpr int kSync = 0;
inline constexpr int kAsync = -1;

// How a push or a pull of dense tensors is sent.
enum class Coding : std::uint8_t {
  kCodec,  // Through Options::push_codec or pull_codec.
  // As float32. A push also forgets what the codec has not sent yet of these tensors. A pull after
  // it, with pull_deltas, gives values, not differences.
  kExact,
};

struct Options {
  // Update of the values by pushed gradients: sgd, rmsprop, adagrad, adam or lion. None: pushes are
  // deltas, and are added.
  std::optional<optim::UpdateRule> rule = kernels::Sgd{.lr = 0.1};

  // kSync: pushes wait until every worker has pushed for the same step. Then one update is made by
  //   their mean, in the order of the workers' numbers (of deltas: their sum).
  // s >= 1: stale synchronous parallel (Ho et al. 2013). Each push is an update of its own, and a
  //   pull waits until the slowest worker is at most s steps behind.
  // kAsync: each push is an update of its own, and no pull waits.
  int staleness = kSync;

  // DC-ASGD (Zheng et al. 2017, arXiv:1609.08326): lambda of the compensation
  //   g + lambda g * g * (w - w_pulled)
  // of a gradient g that was computed at the values w_pulled, where the server now has w. Needs a
  // rule and a staleness other than kSync. Costs a copy of the values for each worker. 0: off.
  double delay_compensation = 0;
  // DC-ASGD-a: lambda is divided by the root of the moving mean of g * g.
  bool adaptive_compensation = false;

  // Codec of pushes, as in weft/compress/spec.h, with error feedback in the worker. All but
  // powersgd and auto.
  std::string push_codec = "none";
  // Codec of pulls: none, bf16 or f16.
  std::string pull_codec = "none";
  // A worker pulls differences to the values that it has. pull_codec may then be any codec of
  // pushes. What a codec leaves out comes with later pulls, since the server knows what the worker
  // has (EF21, Richtárik, Sokolov, Fatkhullin 2021, arXiv:2106.05203). The first pull after join()
  // gives values. Costs a copy of the values for each worker; with delay compensation, the same.
  bool pull_deltas = false;

  bool operator==(const Options&) const;
};

// Throws Error(kInvalidArgument) that names the option.
void check(const Options& options);

// A sparse embedding table: rows of float32 under 64-bit keys. A hash of the key chooses the server
// of a row. A row is made by its first push. Before it, a pull gives the row's first weights, and
// makes nothing. All clients define the same tables, in the same order.
struct TableSpec {
  std::string name;
  std::int64_t row_floats = 0;  // Weights of a row, 1 to 2^20.
  // Update of a row by its pushed gradient (table/rule.h). Add: pushes are deltas.
  RowRule rule = Adagrad{.rule = {.lr = 0.1}};
  // First weights are uniform in [-initial_range, initial_range); a function of seed and key.
  float initial_range = 0;
  std::uint64_t seed = 0;
  // A row that was not pushed for more than this many steps is evicted: each push of rows looks at
  // a part of the table. Steps are those of the fastest worker. 0: rows stay.
  std::uint64_t evict_after = 0;
  // Rows lie in files in the servers' folder (ServerOptions::folder) instead of in memory.
  bool mapped = false;
  // Codecs of pushed and pulled rows. Pushes: none, bf16, f16, or int8 and int4 with `stochastic`
  // or `ef=off`, since the client keeps no residual of a row. Pulls: none, bf16 or f16.
  std::string push_codec = "none", pull_codec = "none";

  bool operator==(const TableSpec&) const;
};

// Throws Error(kInvalidArgument) that names the table and the option.
void check(const TableSpec& table);

// The shard that has the row of a key.
std::uint32_t shard_of(std::uint64_t key, std::uint32_t shards);

// A named tensor of float32, and its number of elements.
struct TensorSize {
  std::string name;
  std::int64_t count = 0;
  bool operator==(const TensorSize&) const = default;
};

// The part [first, first + count) of a tensor that one shard has.
struct Piece {
  std::uint32_t tensor = 0;  // index in the list of tensors
  std::int64_t first = 0;
  std::int64_t count = 0;
  bool operator==(const Piece&) const = default;
};

// Pieces of a shard. The tensors lie in one line, in the order of the list, which is cut into
// `shards` ranges of nearly equal length at multiples of 16 elements. A shard may be empty.
std::vector<Piece> pieces_of(const std::vector<TensorSize>& tensors, std::uint32_t shard,
                             std::uint32_t shards);

}  // namespace weft::ps
