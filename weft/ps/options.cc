#include "weft/ps/options.h"

#include <algorithm>
#include <cmath>

#include "weft/base/error.h"
#include "weft/compress/server_codecs.h"
#include "weft/compress/spec.h"
#include "weft/ps/internal/request.h"
#include "weft/ps/table/table.h"

namespace weft::ps {
namespace {

void check_pull_codec(const std::string& text) {
  const auto kind = compress::parse(text).kind;
  WEFT_REQUIRE(kind == compress::Kind::kNone || kind == compress::Kind::kBf16 ||
                   kind == compress::Kind::kF16,
               "pull_codec = \"" + text + "\" is not supported; use none, bf16 or f16");
}

void check_row_codecs(const TableSpec& table) {
  using compress::Kind;
  const compress::Spec push = compress::parse(table.push_codec);
  const bool known = push.kind == Kind::kNone || push.kind == Kind::kBf16 ||
                     push.kind == Kind::kF16 || push.kind == Kind::kInt8 ||
                     push.kind == Kind::kInt4;
  WEFT_REQUIRE(known && push.memory == compress::Memory::kNone && push.warmup == 0,
               "push_codec = \"" + table.push_codec +
                   "\" is not supported; use none, bf16, f16, or int8 and int4 with stochastic or "
                   "ef=off");
  check_pull_codec(table.pull_codec);
}

}  // namespace

bool TableSpec::operator==(const TableSpec& other) const {
  return internal::encode_table(*this) == internal::encode_table(other);
}

void check(const TableSpec& table) {
  WEFT_REQUIRE(!table.name.empty() && table.name.size() < 256,
               "the name of a table has 1 to 255 bytes");
  try {
    check(TableOptions{
        .row_floats = table.row_floats, .rule = table.rule, .initial_range = table.initial_range});
    check_row_codecs(table);
  } catch (const Error& error) {
    throw Error(error.code(), "table " + table.name + ": " + error.message());
  }
}

// The finalizer of MurmurHash3 (Appleby). It is independent of the hash of a table's index, whose
// bits stay uniform within a shard.
std::uint32_t shard_of(std::uint64_t key, std::uint32_t shards) {
  key = (key ^ (key >> 33)) * 0xff51afd7ed558ccdULL;
  key = (key ^ (key >> 33)) * 0xc4ceb9fe1a85ec53ULL;
  return static_cast<std::uint32_t>((key ^ (key >> 33)) % shards);
}

bool Options::operator==(const Options& other) const {
  return internal::encode_options(*this) == internal::encode_options(other);
}

void check(const Options& options) {
  WEFT_REQUIRE(options.staleness >= kAsync,
               "staleness is " + std::to_string(options.staleness) +
                   "; it must be 0 (sync), a bound of at least 1, or -1 (async)");
  if (options.rule) {
    WEFT_REQUIRE(!optim::needs_whole_tensors(*options.rule),
                 "the parameter server divides tensors over servers, and " +
                     optim::name_of(*options.rule) +
                     " needs whole ones; use sgd, rmsprop, adagrad, adam or lion");
    optim::check_rule(*options.rule);
    const double lr = optim::lr_of(*options.rule);
    WEFT_REQUIRE(std::isfinite(lr) && lr >= 0,
                 "the learning rate of the parameter server must be "
                 "finite and at least 0");
  }
  const double lambda = options.delay_compensation;
  WEFT_REQUIRE(std::isfinite(lambda) && lambda >= 0,
               "delay_compensation must be finite and at least 0");
  WEFT_REQUIRE(lambda == 0 || options.rule,
               "delay_compensation corrects gradients; it needs an update rule");
  WEFT_REQUIRE(lambda == 0 || options.staleness != kSync,
               "delay_compensation has no effect with staleness 0, where no gradient is stale");
  WEFT_REQUIRE(!options.adaptive_compensation || lambda > 0,
               "adaptive_compensation needs delay_compensation above 0");
  compress::check_push_codec(options.push_codec);
  if (options.pull_deltas)
    compress::check_difference_codec(options.pull_codec);
  else
    check_pull_codec(options.pull_codec);
}

std::vector<Piece> pieces_of(const std::vector<TensorSize>& tensors, std::uint32_t shard,
                             std::uint32_t shards) {
  WEFT_REQUIRE(shard < shards, "shard " + std::to_string(shard) + " of " + std::to_string(shards));
  std::int64_t total = 0;
  for (const TensorSize& tensor : tensors) total += tensor.count;
  constexpr std::int64_t kAlign = 16;
  const auto cut = [&](std::uint32_t at) {
    return at == shards ? total : total * at / shards / kAlign * kAlign;
  };
  const std::int64_t begin = cut(shard), end = cut(shard + 1);
  std::vector<Piece> pieces;
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::int64_t from = std::max(begin, offset),
                       to = std::min(end, offset + tensors[i].count);
    if (from < to) pieces.push_back({static_cast<std::uint32_t>(i), from - offset, to - from});
    offset += tensors[i].count;
  }
  return pieces;
}

}  // namespace weft::ps
