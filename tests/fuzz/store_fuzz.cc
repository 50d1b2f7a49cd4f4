// What the store process reads: messages of other nodes, requests of clients, records of its
// journal, snapshots; and messages of a node with the job's secret that does not follow the
// protocol.
#include "tests/fuzz/fuzz.h"
#include "weft/store/internal/node.h"
#include "weft/store/status.h"

using weft::Errc;
using weft::fuzz::accepts;
using weft::fuzz::check;
using namespace weft::store::internal;

namespace {

// Decodes, and checks that what was accepted keeps its meaning.
template <typename Decode>
void decode_and_encode(std::string_view bytes, const Decode& decode) {
  accepts({Errc::kCorrupt}, [&] {
    const auto value = decode(bytes);
    check(decode(encode(value)) == value, "an accepted message keeps every field");
  });
}

void decode_all(std::string_view bytes) {
  decode_and_encode(bytes, [](std::string_view b) { return decode_message(b); });
  decode_and_encode(bytes, [](std::string_view b) { return decode_request(b); });
  decode_and_encode(bytes, [](std::string_view b) { return decode_response(b); });
  decode_and_encode(bytes, [](std::string_view b) { return decode_status(b); });
  accepts({Errc::kCorrupt}, [&] { decode_greeting(bytes); });
  accepts({Errc::kCorrupt}, [&] { decode_snapshot(bytes); });
  accepts({Errc::kCorrupt}, [&] { KeyValues().restore(bytes); });
  Saved saved;
  accepts({Errc::kCorrupt}, [&] { replay(bytes, saved); });
}

Saved second_of_three() {
  Configuration configuration;
  for (MemberId id = 1; id <= 3; ++id) {
    configuration.members.push_back({id, static_cast<std::uint32_t>(id - 1), id, "host:1"});
    configuration.voters.push_back(id);
  }
  configuration.next_id = 4;
  Saved saved;
  saved.identity = Identity{1, 2, 2, 1};
  saved.vote = {1, 0};
  saved.log = Log({1, 1, configuration, KeyValues().snapshot()});
  return saved;
}

// A member's log never loses what was committed, whatever it is sent. Two leaders of a term, and
// a snapshot that no member makes, end the process (kInternal).
void receive_messages(weft::fuzz::Bytes& bytes) {
  Node node({.node = 1, .founders = 3, .seed = 1}, second_of_three(), Time(0));
  Time now{};
  Index committed = 0;
  for (int i = 0; i < 20 && !bytes.empty(); ++i) {
    const auto length = bytes.number<std::uint16_t>();
    const std::string_view text = bytes.take(length % 2048);
    const bool goes_on = accepts({Errc::kCorrupt, Errc::kInternal}, [&] {
      Message message;
      accepts({Errc::kCorrupt}, [&] { message = decode_message(text); });
      message.cluster = 1;
      message.to = 2;
      message.from = message.from % 4;
      node.receive(static_cast<std::uint32_t>(message.from), message);
      node.advance(now += std::chrono::milliseconds(100));
      node.take();
    });
    if (!goes_on || node.raft() == nullptr) return;
    check(node.raft()->commit() >= committed, "the commit index never goes back");
    committed = node.raft()->commit();
  }
}

}  // namespace

void weft::fuzz::one_input(const std::uint8_t* data, std::size_t size) {
  weft::fuzz::Bytes bytes(data, size);
  if (bytes.number<std::uint8_t>() % 2 == 0) return decode_all(bytes.rest());
  receive_messages(bytes);
}
