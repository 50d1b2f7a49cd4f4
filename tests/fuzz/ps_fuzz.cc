// Fuzzes the input of a parameter server: requests, messages of the chain, states; and
// commands of a client that does not follow the protocol.
#include "tests/fuzz/fuzz.h"
#include "weft/ps/internal/chain_message.h"
#include "weft/ps/internal/rows.h"
#include "weft/ps/internal/shard.h"

using weft::Errc;
using weft::fuzz::accepts;
using weft::fuzz::check;
using namespace weft::ps;
using namespace weft::ps::internal;

namespace {

constexpr std::uint64_t kMemory = 1 << 20;

// Memory for a push's head before arbitrary bytes, so that some pushes of rows are well-formed.
std::string rows_payload(weft::fuzz::Bytes& bytes) {
  std::vector<std::uint64_t> keys(bytes.number<std::uint8_t>() % 5);
  for (auto& key : keys) key = bytes.number<std::uint8_t>() % 8;
  std::string payload(rows_head_bytes(keys.size()), '\0');
  write_rows_head(keys, payload.data());
  return payload.append(bytes.take(2 * sizeof(float) * keys.size()));
}

// Decodes, and checks that what was accepted keeps its meaning.
template <typename Decode>
void decode_and_encode(std::string_view bytes, const Decode& decode) {
  accepts({Errc::kCorrupt}, [&] {
    const std::string again = encode(decode(bytes));
    check(encode(decode(again)) == again, "an accepted message keeps every field");
  });
}

void decode_all(std::string_view bytes) {
  decode_and_encode(bytes, [](std::string_view b) { return decode_request(b); });
  decode_and_encode(bytes, [](std::string_view b) { return decode_answer(b); });
  decode_and_encode(bytes, [](std::string_view b) { return decode_chain_message(b); });
  decode_and_encode(bytes, [](std::string_view b) { return decode_view(b); });
  decode_and_encode(bytes, [](std::string_view b) { return decode_address(b); });
  decode_and_encode(bytes, [](std::string_view b) { return decode_stats(b); });
  decode_and_encode(bytes, [](std::string_view b) { return decode_definition(b); });
  accepts({Errc::kCorrupt}, [&] { RowKeys keys(bytes); });
  Shard shard(kMemory);
  accepts({Errc::kCorrupt}, [&] { shard.restore(bytes); });
}

std::string definition(std::uint8_t choice) {
  static constexpr const char* kCodecs[] = {"none",        "int8:4",      "topk:0.5", "sign:8",
                                            "threshold:1", "randomk:0.5", "int4:4",   "bf16"};
  Definition definition;
  definition.options.rule = choice % 2 == 0
                                ? std::nullopt
                                : std::optional<weft::optim::UpdateRule>(weft::kernels::Adam{});
  definition.options.staleness = choice / 2 % 3 - 1;
  definition.options.push_codec = kCodecs[choice / 8 % 8];
  if (choice >= 128) {
    definition.options.pull_deltas = true;
    definition.options.pull_codec = "int8:4";
  }
  definition.parts = {{"a", 0, 5}, {"b", 2, 3}};
  definition.tables = {{.name = "t", .row_floats = 2, .rule = Add{}, .evict_after = 1}};
  definition.values = std::string(8 * sizeof(float), '\0');
  return encode(definition);
}

// A shard stays whole, whatever commands it is given.
void give_commands(weft::fuzz::Bytes& bytes) {
  const std::string defined = definition(bytes.number<std::uint8_t>());
  Shard shard(kMemory);
  Request command;
  command.op = Op::kDefine;
  command.client = 1;
  command.sequence = 1;
  command.payload = defined;
  shard.apply(command);
  for (int i = 0; i < 40 && !bytes.empty(); ++i) {
    command = {};
    command.op = static_cast<Op>(bytes.number<std::uint8_t>() % static_cast<int>(Op::kPull));
    command.client = 1 + bytes.number<std::uint8_t>() % 3;
    command.worker = bytes.number<std::uint8_t>() % 3;
    command.sequence = 1;
    while (shard.has_applied(command.client, command.sequence)) ++command.sequence;
    for (int keys = bytes.number<std::uint8_t>() % 4; keys > 0; --keys)
      command.keys.push_back(bytes.number<std::uint8_t>() % 3);
    const bool has_rows = command.op == Op::kPushRows && bytes.number<std::uint8_t>() % 4 != 0;
    if (has_rows) command.keys = {0};
    const std::string payload =
        has_rows ? rows_payload(bytes) : std::string(bytes.take(bytes.number<std::uint8_t>()));
    command.payload = payload;
    shard.apply(command);
  }
  const std::string state = shard.snapshot();
  Shard copy(kMemory);
  copy.restore(state);
  check(copy.snapshot() == state, "a state is restored with every field");
  Shard in_pieces(kMemory);
  in_pieces.receive_state(shard.begin_state());
  while (const auto rows = shard.next_rows()) in_pieces.receive_rows(*rows);
  in_pieces.finish_state();
  check(in_pieces.snapshot() == state, "a state is received with every field");
}

}  // namespace

void weft::fuzz::one_input(const std::uint8_t* data, std::size_t size) {
  weft::fuzz::Bytes bytes(data, size);
  if (bytes.number<std::uint8_t>() % 2 == 0) return decode_all(bytes.rest());
  give_commands(bytes);
}
