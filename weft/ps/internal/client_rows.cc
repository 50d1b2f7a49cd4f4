#include "weft/ps/internal/client_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "weft/kernels/reduce.h"
#include "weft/ps/internal/codecs.h"
#include "weft/ps/internal/rows.h"

namespace weft::ps::internal {
namespace {

constexpr std::uint64_t kRequestBytes = 4 << 20;
// Requests that fit into the memory for rows.
constexpr std::uint64_t kRequests = 4;
// Commands of an eviction to a shard, so that other requests are served between them.
constexpr std::uint64_t kEvictParts = 64;

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

void ClientRows::define(const std::vector<TableSpec>& tables) {
  tables_.clear();
  std::set<std::string> names;
  for (const TableSpec& table : tables) {
    check(table);
    WEFT_REQUIRE(names.insert(table.name).second, "table " + table.name + " is defined twice");
    tables_.push_back({table, static_cast<std::size_t>(table.row_floats),
                       codec_of(table.push_codec), codec_of(table.pull_codec)});
  }
}

std::uint64_t ClientRows::memory_bytes() const {
  std::uint64_t most = 0;
  for (const RowTable& table : tables_) {
    const std::size_t rows = rows_of_request(table.width);
    for (const auto* codec : {table.push_codec.get(), table.pull_codec.get()})
      most = std::max(most, rows_head_bytes(rows) + value_bytes(codec, rows * table.width) + 64);
  }
  return kRequests * most;
}

std::uint32_t ClientRows::find_table(const std::string& name) const {
  for (std::uint32_t i = 0; i < tables_.size(); ++i)
    if (tables_[i].spec.name == name) return i;
  throw Error(Errc::kInvalidArgument, "the parameter server has no table " + name);
}

// The places of the keys of each shard.
std::vector<ClientRows::Places> ClientRows::divide(const RowTable& table,
                                                   std::span<const std::uint64_t> keys,
                                                   std::size_t floats) const {
  WEFT_REQUIRE(floats == keys.size() * table.width,
               std::to_string(keys.size()) + " rows of table " + table.spec.name + " have " +
                   std::to_string(keys.size() * table.width) + " floats (" +
                   std::to_string(table.width) + " each), not " + std::to_string(floats));
  WEFT_REQUIRE(keys.size() <= std::numeric_limits<std::uint32_t>::max(),
               "a call has at most 2^32 - 1 keys");
  std::vector<Places> places(requests_.options().servers);
  for (std::size_t i = 0; i < keys.size(); ++i)
    places[shard_of(keys[i], requests_.options().servers)].push_back(static_cast<std::uint32_t>(i));
  return places;
}

void ClientRows::check_rows(const RowTable& table, std::span<const std::uint64_t> keys,
                            std::span<const float> values) const {
  if (kernels::is_within(values.data(), static_cast<std::int64_t>(values.size()),
                         std::numeric_limits<float>::max()))
    return;
  const auto bad =
      std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
  const auto at = static_cast<std::size_t>(bad - values.begin());
  throw Error(Errc::kInvalidArgument, "worker " + std::to_string(*requests_.options().worker) +
                                          " pushes " + (std::isnan(*bad) ? "NaN" : "infinity") +
                                          " for key " + std::to_string(keys[at / table.width]) +
                                          " of table " + table.spec.name + ", element " +
                                          std::to_string(at % table.width) + "; nothing was sent");
}

std::uint64_t ClientRows::take_memory(std::uint64_t bytes) {
  for (const Deadline deadline = requests_.patience();;) {
    if (const auto offset = arena_.take(bytes)) return *offset;
    requests_.advance_by(deadline);
  }
}

ClientRows::Ticket ClientRows::push(const std::string& name, std::span<const std::uint64_t> keys,
                                    std::span<const float> gradients, double lr) {
  WEFT_REQUIRE(std::isfinite(lr), "the learning rate of a push must be finite");
  const std::uint32_t number = find_table(name);
  const RowTable& table = tables_[number];
  const std::vector<Places> places = divide(table, keys, gradients.size());
  check_rows(table, keys, gradients);
  requests_.await_commands();
  return send_parts({number, keys, lr, requests_.open_ticket()}, places,
                    [&](const RowCall& call, std::uint32_t shard, Part part) {
                      send_push(call, shard, part, gradients);
                    });
}

ClientRows::Ticket ClientRows::send_parts(
    const RowCall& call, const std::vector<Places>& places,
    const std::function<void(const RowCall&, std::uint32_t shard, Part)>& send) {
  const std::size_t most = rows_of_request(tables_[call.table].width);
  try {
    for (std::size_t first = 0; first < call.keys.size(); first += most) {
      for (std::uint32_t shard = 0; shard < requests_.options().servers; ++shard) {
        const Part of_shard(places[shard]);
        if (first >= of_shard.size()) continue;
        send(call, shard, of_shard.subspan(first, std::min(most, of_shard.size() - first)));
      }
    }
  } catch (...) {
    // The caller gets no ticket. The answers to the requests that were sent must not be written to
    // its memory.
    requests_.forget(call.ticket);
    throw;
  }
  return call.ticket;
}

void ClientRows::send_push(const RowCall& call, std::uint32_t shard, Part places,
                           std::span<const float> gradients) {
  const RowTable& table = tables_[call.table];
  const std::size_t floats = places.size() * table.width;
  const std::uint64_t head = rows_head_bytes(places.size());
  // Before the command has its number, since this may fail.
  const std::uint64_t offset = take_memory(head + value_bytes(table.push_codec.get(), floats));
  Outstanding push = requests_.command(Op::kPushRows, shard);
  Request& request = push.request;
  request.keys = {call.table};
  request.lr = call.lr;
  request.offset = offset;
  std::vector<std::uint64_t> keys(places.size());
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = call.keys[places[i]];
  char* const to = reinterpret_cast<char*>(requests_.memory() + offset);
  write_rows_head(keys, to);
  float* values = reinterpret_cast<float*>(to + head);
  if (table.push_codec) {
    scratch_.resize(floats);
    values = scratch_.data();
  }
  for (std::size_t i = 0; i < places.size(); ++i)
    std::memcpy(values + i * table.width, gradients.data() + places[i] * table.width,
                sizeof(float) * table.width);
  request.bytes = head + sizeof(float) * floats;
  if (table.push_codec) {
    const auto draw = draw_of(compress::parse(table.spec.push_codec).seed, request, call.table,
                              static_cast<std::uint32_t>(request.sequence));
    const std::string codes = encode_values(*table.push_codec, scratch_, draw, nullptr);
    std::memcpy(to + head, codes.data(), codes.size());
    request.bytes = head + codes.size();
  }
  row_requests_[request.id] = {offset, call.ticket, call.table, {}, nullptr};
  requests_.send(shard, std::move(push), call.ticket);
}

ClientRows::Ticket ClientRows::pull(const std::string& name, std::span<const std::uint64_t> keys,
                                    std::span<float> rows) {
  const std::uint32_t number = find_table(name);
  const RowTable& table = tables_[number];
  const std::vector<Places> places = divide(table, keys, rows.size());
  return send_parts({number, keys, -1, requests_.open_ticket()}, places,
                    [&](const RowCall& call, std::uint32_t shard, Part part) {
                      send_pull(call, shard, part, rows);
                    });
}

void ClientRows::send_pull(const RowCall& call, std::uint32_t shard, Part places,
                           std::span<float> rows) {
  const RowTable& table = tables_[call.table];
  const std::size_t floats = places.size() * table.width;
  Outstanding pull;
  const std::uint64_t bytes =
      table.pull_codec
          ? static_cast<std::uint64_t>(table.pull_codec->bytes(static_cast<std::int64_t>(floats)))
          : sizeof(float) * floats;
  const std::uint64_t offset = take_memory(bytes);
  pull.request = requests_.read(Op::kPullRows, shard);
  pull.request.keys = {call.table};
  pull.request.offset = offset;
  pull.request.bytes = bytes;
  std::vector<std::uint64_t> keys(places.size());
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = call.keys[places[i]];
  pull.payload.resize(rows_head_bytes(keys.size()));
  write_rows_head(keys, pull.payload.data());
  row_requests_[pull.request.id] = {
      offset, call.ticket, call.table, {places.begin(), places.end()}, rows.data()};
  requests_.send(shard, std::move(pull), call.ticket);
}

void ClientRows::take(const Request& request, std::string_view payload, bool is_wanted) {
  const auto rows = row_requests_.extract(request.id);
  if (rows.empty()) return;
  arena_.give_back(rows.mapped().offset);  // nobody takes it before this returns
  if (is_wanted && request.op == Op::kPullRows) take_rows(request, rows.mapped(), payload);
}

// Rows that have come in a message (else the server has written them), to their places.
void ClientRows::take_rows(const Request& pull, const RowRequest& rows, std::string_view payload) {
  if (!payload.empty() && payload.size() != pull.bytes)
    throw Error(Errc::kCorrupt, "a server sent another number of rows than were pulled");
  if (rows.out == nullptr) return;
  const RowTable& table = tables_[rows.table];
  const std::byte* from = requests_.memory() + pull.offset;
  if (!payload.empty()) from = reinterpret_cast<const std::byte*>(payload.data());
  const std::byte* values = from;
  if (table.pull_codec) {
    // The codec reads words.
    std::vector<std::uint32_t> codes((pull.bytes + 3) / 4);
    if (!codes.empty()) std::memcpy(codes.data(), from, pull.bytes);
    scratch_.assign(rows.places.size() * table.width, 0);
    table.pull_codec->add(std::as_bytes(std::span(codes)).first(pull.bytes), {}, scratch_);
    values = reinterpret_cast<const std::byte*>(scratch_.data());
  }
  const std::size_t row_bytes = sizeof(float) * table.width;
  for (std::size_t i = 0; i < rows.places.size(); ++i)
    std::memcpy(rows.out + rows.places[i] * table.width, values + i * row_bytes, row_bytes);
}

void ClientRows::abandon(Ticket ticket, const Error& error) {
  for (auto& [id, rows] : row_requests_) {
    if (rows.ticket != ticket || rows.out == nullptr) continue;
    rows.out = nullptr;
    requests_.fail(ticket, error);
  }
}

ClientRows::Ticket ClientRows::evict(const std::string& name, std::uint64_t age) {
  const std::uint32_t number = find_table(name);
  requests_.await_commands();
  const Ticket ticket = requests_.open_ticket();
  constexpr std::uint64_t kSpan = ~std::uint64_t{0} / kEvictParts;
  for (std::uint64_t part = 0; part < kEvictParts; ++part) {
    const std::uint64_t first = part * (kSpan + 1);
    for (std::uint32_t shard = 0; shard < requests_.options().servers; ++shard) {
      Outstanding request = requests_.command(Op::kEvict, shard);
      request.request.keys = {number};
      for (const std::uint64_t value : {age, first, first + kSpan})
        request.payload.append(reinterpret_cast<const char*>(&value), sizeof value);
      requests_.send(shard, std::move(request), ticket);
    }
  }
  return ticket;
}

}  // namespace weft::ps::internal
