// The messages of ranks, parameter servers and their launcher: a verb, a blank and a value.
#include <string>
#include <variant>

#include "tests/fuzz/fuzz.h"
#include "weft/rank_link/messages.h"

using namespace weft::rank_link;

namespace {

template <class Variant>
void decode_as(const Message& text) {
  const auto message = decode<Variant>(text);
  if (!message) return;
  std::visit(
      [](const auto& one) {
        const auto again = decode<Variant>(encode(one));
        weft::fuzz::check(again.has_value(), "a message that was read can be sent");
        weft::fuzz::check(
            std::visit([](const auto& m) { return encode(m); }, *again) == encode(one),
            "a message reads back as the same");
      },
      *message);
}

}  // namespace

void weft::fuzz::one_input(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const std::size_t blank = text.find(' ');
  const Message message{text.substr(0, blank),
                        blank == std::string::npos ? "" : text.substr(blank + 1)};
  decode_as<RankMessage>(message);
  decode_as<ServerMessage>(message);
  decode_as<LauncherMessage>(message);
}
