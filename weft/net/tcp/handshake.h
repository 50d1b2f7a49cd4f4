// Two ranks prove to each other that they have the job's secret before anything else is sent. Pure
// functions over bytes, without sockets.
//
//   dialer -> acceptor  hello  120 bytes: magic, version, stream, from, to, world, streams, epoch,
//                              SHA-256(job id), nonce
//   acceptor -> dialer  reply   72 bytes: magic, version, verdict, nonce, HMAC-SHA256(secret,
//                               "accept" | hello | reply so far)
//   dialer -> acceptor  proof   32 bytes: HMAC-SHA256(secret, "dial" | hello | reply)
//   acceptor -> dialer  done     4 bytes: verdict
//
// Both proofs contain fresh nonces of both sides, which prevents replay. Their labels differ, which
// prevents reflection.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace weft::net::internal {

using Secret = std::array<std::byte, 32>;
using Nonce = std::array<std::byte, 32>;

inline constexpr std::size_t kHelloBytes = 120;
inline constexpr std::size_t kReplyBytes = 72;
inline constexpr std::size_t kProofBytes = 32;
inline constexpr std::size_t kDoneBytes = 4;
inline constexpr std::uint16_t kWireVersion = 3;

enum class Verdict : std::uint16_t {
  kWelcome = 0,
  kVersion,
  kJob,
  kWorld,
  kEpoch,
  kRank,
  kSecret,
  kStreams,
  kMalformed,
  kTaken
};

// Message in one line, without any received bytes.
const char* explain(Verdict verdict);

// One side's knowledge of the job, and its own rank. Without a secret, the key is all zeros: this
// keeps out stray connections, but not attackers.
struct Identity {
  std::string job;
  int rank = 0;
  int world = 1;
  int streams = 1;
  std::uint32_t epoch = 0;
  std::optional<Secret> secret;
};

using Hello = std::array<std::byte, kHelloBytes>;
using Reply = std::array<std::byte, kReplyBytes>;
using Proof = std::array<std::byte, kProofBytes>;
using Done = std::array<std::byte, kDoneBytes>;

Nonce fresh_nonce();

Hello make_hello(const Identity& me, int to, int stream, const Nonce& nonce);

// True if the first received bytes can be the beginning of a hello.
inline constexpr std::size_t kMagicBytes = 4;
bool has_hello_magic(std::span<const std::byte, kMagicBytes> bytes);

struct HelloCheck {
  Verdict verdict = Verdict::kMalformed;
  int from = -1;
  int stream = -1;
};
// The acceptor's check of a hello: the sender's rank, if it is valid.
HelloCheck check_hello(const Identity& me, std::span<const std::byte, kHelloBytes> hello);

// With a verdict other than kWelcome: a rejection without nonce and proof.
Reply make_reply(const Identity& me, std::span<const std::byte, kHelloBytes> hello, Verdict verdict,
                 const Nonce& nonce);

// The dialer's check of a reply: kWelcome, the acceptor's rejection, or kSecret if the acceptor
// cannot prove that it has the secret.
Verdict check_reply(const Identity& me, std::span<const std::byte, kHelloBytes> hello,
                    std::span<const std::byte, kReplyBytes> reply);

Proof make_proof(const Identity& me, std::span<const std::byte, kHelloBytes> hello,
                 std::span<const std::byte, kReplyBytes> reply);
// Runs in constant time for any bytes of the proof.
bool check_proof(const Identity& me, std::span<const std::byte, kHelloBytes> hello,
                 std::span<const std::byte, kReplyBytes> reply,
                 std::span<const std::byte, kProofBytes> proof);

Done make_done(Verdict verdict);
Verdict check_done(std::span<const std::byte, kDoneBytes> done);

}  // namespace weft::net::internal
