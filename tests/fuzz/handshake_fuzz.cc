// All four messages of the handshake, as a stranger may send them, to either side.
#include "weft/net/tcp/handshake.h"

#include "tests/fuzz/fuzz.h"

using weft::fuzz::check;
using namespace weft::net::internal;

namespace {

Secret secret() {
  Secret value;
  value.fill(std::byte{0x5a});
  return value;
}

}  // namespace

void weft::fuzz::one_input(const std::uint8_t* data, std::size_t size) {
  static const Identity acceptor{"fuzz", 1, 4, 3, 5, secret()};
  static const Identity dialer{"fuzz", 2, 4, 3, 5, secret()};
  static const Hello said = make_hello(dialer, 1, 1, Nonce{});
  static const Reply answered = make_reply(acceptor, said, Verdict::kWelcome, Nonce{});
  weft::fuzz::Bytes bytes(data, size);

  // To the acceptor.
  const Hello hello = bytes.array<Hello>();
  const HelloCheck seen = check_hello(acceptor, hello);
  if (seen.verdict == Verdict::kWelcome) {
    check(seen.from > acceptor.rank && seen.from < acceptor.world,
          "a welcome names a rank that may dial");
    check(seen.stream >= 0 && seen.stream < acceptor.streams,
          "a welcome names a stream of the group");
    check(has_hello_magic(std::span(hello).first<kMagicBytes>()),
          "a welcome begins with the magic number");
  }
  const Proof proof = bytes.array<Proof>();
  check(
      !check_proof(acceptor, hello, make_reply(acceptor, hello, Verdict::kWelcome, Nonce{}), proof),
      "nobody proves a secret by chance");

  // To the dialer.
  const Reply reply = bytes.array<Reply>();
  const Verdict verdict = check_reply(dialer, said, reply);
  check(verdict != Verdict::kWelcome || reply == answered,
        "only the holder of the secret says welcome");
  check(explain(verdict) != nullptr, "every verdict can be explained");
  explain(check_done(bytes.array<Done>()));
}
