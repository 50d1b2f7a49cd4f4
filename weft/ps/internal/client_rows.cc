// Rows of embedding tables. A call is divided by the shards of its keys, and into requests of about
// 4 MiB, which are outstanding together.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "weft/kernels/reduce.h"
#include "weft/ps/internal/client_impl.h"
#include "weft/ps/internal/codecs.h"
#include "weft/ps/internal/rows.h"

namespace weft::ps {
namespace {

using internal::codec_of;
using internal::Op;

constexpr std::uint64_t kRequestBytes = 4 << 20;
// Requests that fit into the memory for rows.
constexpr std::uint64_t kRequests = 4;
// Commands of an eviction to a shard, so that other requests are served between them.
constexpr std::uint64_t kEvictParts = 64;
// A codec's length before its bytes, and their padding.
constexpr std::uint64_t kCodecHead = 8;

std::uint64_t value_bytes(const compress::Codec* codec, std::size_t floats) {
  return codec == nullptr
             ? sizeof(float) * floats
             : kCodecHead +
                   static_cast<std::uint64_t>(codec->bytes(static_cast<std::int64_t>(floats)));
}

// Rows of a request.
std::size_t rows_of_request(std::size_t width) {
  return std::max<std::size_t>(1, kRequestBytes / (sizeof(std::uint64_t) + sizeof(float) * width));
}

}  // namespace

void Client::Impl::define_tables(const std::vector<TableSpec>& tables) {
  row_tables_.clear();
  std::set<std::string> names;
  for (const TableSpec& table : tables) {
    check(table);
    WEFT_REQUIRE(names.insert(table.name).second, "table " + table.name + " is defined twice");
    row_tables_.push_back({table, static_cast<std::size_t>(table.row_floats),
                           codec_of(table.push_codec), codec_of(table.pull_codec)});
  }
}

std::uint64_t Client::Impl::row_memory() const {
  std::uint64_t most = 0;
  for (const RowTable& table : row_tables_) {
    const std::size_t rows = rows_of_request(table.width);
    for (const auto* codec : {table.push_codec.get(), table.pull_codec.get()})
      most = std::max(
          most, internal::rows_head_bytes(rows) + value_bytes(codec, rows * table.width) + 64);
  }
  return kRequests * most;
}

std::uint32_t Client::Impl::find_table(const std::string& name) const {
  WEFT_REQUIRE(is_defined_, "call define() first");
  for (std::uint32_t i = 0; i < row_tables_.size(); ++i)
    if (row_tables_[i].spec.name == name) return i;
  throw Error(Errc::kInvalidArgument, "the parameter server has no table " + name);
}

// The places of the keys of each shard.
std::vector<Client::Impl::Places> Client::Impl::divide(const RowTable& table,
                                                       std::span<const std::uint64_t> keys,
                                                       std::size_t floats) const {
  WEFT_REQUIRE(floats == keys.size() * table.width,
               std::to_string(keys.size()) + " rows of table " + table.spec.name + " have " +
                   std::to_string(keys.size() * table.width) + " floats (" +
                   std::to_string(table.width) + " each), not " + std::to_string(floats));
  WEFT_REQUIRE(keys.size() <= std::numeric_limits<std::uint32_t>::max(),
               "a call has at most 2^32 - 1 keys");
  std::vector<Places> places(options_.servers);
  for (std::size_t i = 0; i < keys.size(); ++i)
    places[shard_of(keys[i], options_.servers)].push_back(static_cast<std::uint32_t>(i));
  return places;
}

void Client::Impl::check_rows(const RowTable& table, std::span<const std::uint64_t> keys,
                              std::span<const float> values) const {
  if (kernels::is_within(values.data(), static_cast<std::int64_t>(values.size()),
                         std::numeric_limits<float>::max()))
    return;
  const auto bad =
      std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
  const auto at = static_cast<std::size_t>(bad - values.begin());
  throw Error(Errc::kInvalidArgument, "worker " + std::to_string(*options_.worker) + " pushes " +
                                          (std::isnan(*bad) ? "NaN" : "infinity") + " for key " +
                                          std::to_string(keys[at / table.width]) + " of table " +
                                          table.spec.name + ", element " +
                                          std::to_string(at % table.width) + "; nothing was sent");
}

std::uint64_t Client::Impl::take_row_memory(std::uint64_t bytes) {
  for (const Deadline deadline = patience();;) {
    if (const auto offset = arena_.take(bytes)) return *offset;
    if (deadline.passed()) throw no_answer();
    sleep(deadline);
    advance();
  }
}

Client::Ticket Client::Impl::push_rows(const std::string& name, std::span<const std::uint64_t> keys,
                                       std::span<const float> gradients, double lr) {
  require_worker();
  WEFT_REQUIRE(std::isfinite(lr), "the learning rate of a push must be finite");
  const std::uint32_t number = find_table(name);
  const RowTable& table = row_tables_[number];
  const std::vector<Places> places = divide(table, keys, gradients.size());
  check_rows(table, keys, gradients);
  finish_pull_of_deltas();
  const RowCall call{number, keys, lr, open_ticket()};
  const std::size_t most = rows_of_request(table.width);
  for (std::size_t first = 0; first < keys.size(); first += most) {
    for (std::uint32_t shard = 0; shard < options_.servers; ++shard) {
      const std::span<const std::uint32_t> of_shard(places[shard]);
      if (first >= of_shard.size()) continue;
      send_push(call, shard, of_shard.subspan(first, std::min(most, of_shard.size() - first)),
                gradients);
    }
  }
  return call.ticket;
}

void Client::Impl::send_push(const RowCall& call, std::uint32_t shard,
                             std::span<const std::uint32_t> places,
                             std::span<const float> gradients) {
  const RowTable& table = row_tables_[call.table];
  const std::size_t floats = places.size() * table.width;
  const std::uint64_t head = internal::rows_head_bytes(places.size());
  // Before the command has its number, since this may fail.
  const std::uint64_t offset = take_row_memory(head + value_bytes(table.push_codec.get(), floats));
  Outstanding push = command(Op::kPushRows, shard);
  Request& request = push.request;
  request.keys = {call.table};
  request.lr = call.lr;
  request.offset = offset;
  std::vector<std::uint64_t> keys(places.size());
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = call.keys[places[i]];
  char* const to = reinterpret_cast<char*>(memory_.data() + offset);
  internal::write_rows_head(keys, to);
  float* values = reinterpret_cast<float*>(to + head);
  if (table.push_codec) {
    row_scratch_.resize(floats);
    values = row_scratch_.data();
  }
  for (std::size_t i = 0; i < places.size(); ++i)
    std::memcpy(values + i * table.width, gradients.data() + places[i] * table.width,
                sizeof(float) * table.width);
  request.bytes = head + sizeof(float) * floats;
  if (table.push_codec) {
    const auto draw =
        internal::draw_of(compress::parse(table.spec.push_codec).seed, request, call.table);
    const std::string codes =
        internal::encode_values(*table.push_codec, row_scratch_, draw, nullptr);
    std::memcpy(to + head, codes.data(), codes.size());
    request.bytes = head + codes.size();
  }
  row_requests_[request.id] = {offset, call.ticket, call.table, {}, nullptr};
  send(shard, std::move(push), call.ticket);
}

Client::Ticket Client::Impl::pull_rows(const std::string& name, std::span<const std::uint64_t> keys,
                                       std::span<float> rows) {
  const std::uint32_t number = find_table(name);
  const RowTable& table = row_tables_[number];
  const std::vector<Places> places = divide(table, keys, rows.size());
  const RowCall call{number, keys, -1, open_ticket()};
  const std::size_t most = rows_of_request(table.width);
  for (std::size_t first = 0; first < keys.size(); first += most) {
    for (std::uint32_t shard = 0; shard < options_.servers; ++shard) {
      const std::span<const std::uint32_t> of_shard(places[shard]);
      if (first >= of_shard.size()) continue;
      send_pull(call, shard, of_shard.subspan(first, std::min(most, of_shard.size() - first)),
                rows);
    }
  }
  return call.ticket;
}

void Client::Impl::send_pull(const RowCall& call, std::uint32_t shard,
                             std::span<const std::uint32_t> places, std::span<float> rows) {
  const RowTable& table = row_tables_[call.table];
  const std::size_t floats = places.size() * table.width;
  Outstanding pull;
  const std::uint64_t bytes =
      table.pull_codec
          ? static_cast<std::uint64_t>(table.pull_codec->bytes(static_cast<std::int64_t>(floats)))
          : sizeof(float) * floats;
  const std::uint64_t offset = take_row_memory(bytes);
  pull.request = read(Op::kPullRows, shard);
  pull.request.keys = {call.table};
  pull.request.offset = offset;
  pull.request.bytes = bytes;
  std::vector<std::uint64_t> keys(places.size());
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = call.keys[places[i]];
  pull.payload.resize(internal::rows_head_bytes(keys.size()));
  internal::write_rows_head(keys, pull.payload.data());
  row_requests_[pull.request.id] = {
      offset, call.ticket, call.table, {places.begin(), places.end()}, rows.data()};
  send(shard, std::move(pull), call.ticket);
}

// Rows that have come in a message (else the server has written them), to their places.
void Client::Impl::take_rows(const Request& pull, const RowRequest& rows,
                             std::string_view payload) {
  if (!payload.empty() && payload.size() != pull.bytes)
    throw Error(Errc::kCorrupt, "a server sent another number of rows than were pulled");
  if (rows.out == nullptr) return;
  const RowTable& table = row_tables_[rows.table];
  const std::byte* from = memory_.data() + pull.offset;
  if (!payload.empty()) from = reinterpret_cast<const std::byte*>(payload.data());
  const std::byte* values = from;
  if (table.pull_codec) {
    // The codec reads words.
    std::vector<std::uint32_t> codes((pull.bytes + 3) / 4);
    if (!codes.empty()) std::memcpy(codes.data(), from, pull.bytes);
    row_scratch_.assign(rows.places.size() * table.width, 0);
    table.pull_codec->add(std::as_bytes(std::span(codes)).first(pull.bytes), {}, row_scratch_);
    values = reinterpret_cast<const std::byte*>(row_scratch_.data());
  }
  const std::size_t row_bytes = sizeof(float) * table.width;
  for (std::size_t i = 0; i < rows.places.size(); ++i)
    std::memcpy(rows.out + rows.places[i] * table.width, values + i * row_bytes, row_bytes);
}

// The caller's memory may not stay longer than its wait().
void Client::Impl::abandon_rows(Ticket ticket, const Error& error) {
  for (auto& [id, rows] : row_requests_) {
    if (rows.ticket != ticket || rows.out == nullptr) continue;
    rows.out = nullptr;
    tickets_.at(ticket).error = error;
  }
}

void Client::Impl::evict_rows(const std::string& name, std::uint64_t age) {
  require_worker();
  const std::uint32_t number = find_table(name);
  finish_pull_of_deltas();
  const Ticket ticket = open_ticket();
  constexpr std::uint64_t kSpan = ~std::uint64_t{0} / kEvictParts;
  for (std::uint64_t part = 0; part < kEvictParts; ++part) {
    const std::uint64_t first = part * (kSpan + 1);
    for (std::uint32_t shard = 0; shard < options_.servers; ++shard) {
      Outstanding request = command(Op::kEvict, shard);
      request.request.keys = {number};
      for (const std::uint64_t value : {age, first, first + kSpan})
        request.payload.append(reinterpret_cast<const char*>(&value), sizeof value);
      send(shard, std::move(request), ticket);
    }
  }
  wait(ticket, patience());
}

}  // namespace weft::ps
