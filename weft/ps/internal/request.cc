#include "weft/ps/internal/request.h"

#include "weft/net/stream/bytes.h"
#include "weft/ps/internal/rule_fields.h"

namespace weft::ps::internal {
namespace {

using net::internal::ByteReader;
using net::internal::ByteWriter;

constexpr std::size_t kPayloadAlign = 16;

std::string_view rest_of(ByteReader& in, std::string_view all) {
  return all.substr(all.size() - in.left());
}

void put(ByteWriter& out, const Options& options) {
  out.put<std::uint8_t>(options.rule.has_value());
  if (options.rule) put_rule(out, *options.rule);
  out.put<std::int32_t>(options.staleness);
  out.put(options.delay_compensation);
  out.put<std::uint8_t>(options.adaptive_compensation);
  out.put_text(options.push_codec);
  out.put_text(options.pull_codec);
  out.put<std::uint8_t>(options.pull_deltas);
}

Options take_options(ByteReader& in) {
  Options options;
  options.rule.reset();
  if (in.take<std::uint8_t>() != 0) options.rule = take_rule<optim::UpdateRule>(in);
  options.staleness = in.take<std::int32_t>();
  options.delay_compensation = in.take<double>();
  options.adaptive_compensation = in.take<std::uint8_t>() != 0;
  options.push_codec = std::string(in.take_text());
  options.pull_codec = std::string(in.take_text());
  options.pull_deltas = in.take<std::uint8_t>() != 0;
  return options;
}

}  // namespace

Answer refuse(Errc code, std::string text) {
  Answer answer;
  answer.outcome = Outcome::kRefused;
  answer.code = code;
  answer.text = std::move(text);
  return answer;
}

std::string encode_head(const Request& request, std::size_t payload_bytes) {
  ByteWriter out;
  out.put(request.op);
  out.put<std::uint8_t>(request.in_memory);
  out.put(request.shard);
  out.put(request.worker);
  out.put(request.id);
  out.put(request.client);
  out.put(request.sequence);
  out.put(request.done);
  out.put(request.view);
  out.put(request.version);
  out.put(request.lr);
  out.put<std::uint8_t>(request.exact);
  out.put(request.offset);
  out.put(request.bytes);
  out.put<std::uint64_t>(payload_bytes);
  out.put(static_cast<std::uint32_t>(request.keys.size()));
  for (const std::uint32_t key : request.keys) out.put(key);
  while (out.size() % kPayloadAlign != 0) out.put<std::uint8_t>(0);
  return out.take();
}

std::string encode(const Request& request) {
  std::string bytes = encode_head(request, request.payload.size());
  bytes.reserve(bytes.size() + request.payload.size());
  return bytes.append(request.payload);
}

Request decode_request(std::string_view bytes) {
  ByteReader in(bytes);
  Request request;
  request.op = in.take_enum(kLastOp);
  request.in_memory = in.take<std::uint8_t>() != 0;
  request.shard = in.take<std::uint32_t>();
  request.worker = in.take<std::uint32_t>();
  request.id = in.take<std::uint64_t>();
  request.client = in.take<std::uint64_t>();
  request.sequence = in.take<std::uint64_t>();
  request.done = in.take<std::uint64_t>();
  request.view = in.take<std::uint64_t>();
  request.version = in.take<std::uint64_t>();
  request.lr = in.take<double>();
  request.exact = in.take<std::uint8_t>() != 0;
  request.offset = in.take<std::uint64_t>();
  request.bytes = in.take<std::uint64_t>();
  const auto payload = in.take<std::uint64_t>();
  request.keys.resize(in.take_count(sizeof(std::uint32_t)));
  for (std::uint32_t& key : request.keys) key = in.take<std::uint32_t>();
  while ((bytes.size() - in.left()) % kPayloadAlign != 0) in.take<std::uint8_t>();
  if (in.left() != payload) ByteReader::fail();
  request.payload = rest_of(in, bytes);
  return request;
}

std::string encode_head(const Answer& answer) {
  ByteWriter out;
  out.put(answer.id);
  out.put(answer.outcome);
  out.put<std::uint8_t>(static_cast<std::uint8_t>(answer.code));
  out.put_text(answer.text);
  out.put(answer.version);
  out.put(answer.clock);
  while (out.size() % kPayloadAlign != 0) out.put<std::uint8_t>(0);
  return out.take();
}

std::string encode(const Answer& answer) { return encode_head(answer) + answer.payload; }

Answer decode_answer(std::string_view bytes, std::string_view* payload) {
  ByteReader in(bytes);
  Answer answer;
  answer.id = in.take<std::uint64_t>();
  answer.outcome = in.take_enum(Outcome::kElsewhere);
  answer.code = in.take_enum(Errc::kInternal);
  answer.text = std::string(in.take_text());
  answer.version = in.take<std::uint64_t>();
  answer.clock = in.take<std::int64_t>();
  while ((bytes.size() - in.left()) % kPayloadAlign != 0) in.take<std::uint8_t>();
  if (payload != nullptr)
    *payload = rest_of(in, bytes);
  else
    answer.payload = std::string(rest_of(in, bytes));
  return answer;
}

std::string encode_options(const Options& options) {
  ByteWriter out;
  put(out, options);
  return out.take();
}

Options decode_options(std::string_view bytes) {
  ByteReader in(bytes);
  Options options = take_options(in);
  in.expect_end();
  return options;
}

std::string encode_table(const TableSpec& table) {
  ByteWriter out;
  out.put_text(table.name);
  out.put(table.row_floats);
  put_rule(out, table.rule);
  out.put(table.initial_range);
  out.put(table.seed);
  out.put(table.evict_after);
  out.put<std::uint8_t>(table.mapped);
  out.put_text(table.push_codec);
  out.put_text(table.pull_codec);
  return out.take();
}

TableSpec decode_table(std::string_view bytes) {
  ByteReader in(bytes);
  TableSpec table;
  table.name = std::string(in.take_text());
  table.row_floats = in.take<std::int64_t>();
  table.rule = take_rule<RowRule>(in);
  table.initial_range = in.take<float>();
  table.seed = in.take<std::uint64_t>();
  table.evict_after = in.take<std::uint64_t>();
  table.mapped = in.take<std::uint8_t>() != 0;
  table.push_codec = std::string(in.take_text());
  table.pull_codec = std::string(in.take_text());
  in.expect_end();
  return table;
}

std::string encode(const Definition& definition) {
  ByteWriter out;
  out.put_text(encode_options(definition.options));
  out.put(static_cast<std::uint32_t>(definition.tables.size()));
  for (const TableSpec& table : definition.tables) out.put_text(encode_table(table));
  out.put(static_cast<std::uint32_t>(definition.parts.size()));
  for (const Definition::Part& part : definition.parts) {
    out.put_text(part.name);
    out.put(part.first);
    out.put(part.count);
  }
  out.put_bytes(definition.values);
  return out.take();
}

Definition decode_definition(std::string_view bytes) {
  ByteReader in(bytes);
  Definition definition;
  definition.options = decode_options(in.take_text());
  definition.tables.resize(in.take_count(sizeof(std::uint32_t)));
  for (TableSpec& table : definition.tables) table = decode_table(in.take_text());
  definition.parts.resize(in.take_count(sizeof(std::uint32_t) + 2 * sizeof(std::int64_t)));
  for (Definition::Part& part : definition.parts) {
    part.name = std::string(in.take_text());
    part.first = in.take<std::int64_t>();
    part.count = in.take<std::int64_t>();
  }
  definition.values = std::string(rest_of(in, bytes));
  return definition;
}

std::string encode(const ShardStats& stats) {
  ByteWriter out;
  for (const std::uint64_t count : stats.staleness) out.put(count);
  out.put(stats.updates);
  out.put(stats.memory_bytes);
  out.put(stats.workers);
  out.put(stats.rows);
  out.put(stats.file_bytes);
  return out.take();
}

ShardStats decode_stats(std::string_view bytes) {
  ByteReader in(bytes);
  ShardStats stats;
  for (std::uint64_t& count : stats.staleness) count = in.take<std::uint64_t>();
  stats.updates = in.take<std::uint64_t>();
  stats.memory_bytes = in.take<std::uint64_t>();
  stats.workers = in.take<std::uint32_t>();
  stats.rows = in.take<std::uint64_t>();
  stats.file_bytes = in.take<std::uint64_t>();
  in.expect_end();
  return stats;
}

}  // namespace weft::ps::internal
