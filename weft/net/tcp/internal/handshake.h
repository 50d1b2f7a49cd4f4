// Two ranks prove to each other that they hold the job's secret before anything else is sent. Pure
// functions over bytes, no sockets.
//
//   dialer -> acceptor  hello  120 bytes: magic, version, stream, from, to, world, streams, epoch,
//                              SHA-256(job id), nonce
//   acceptor -> dialer  reply   72 bytes: magic, version, verdict, nonce, HMAC-SHA256(secret,
//                               "accept" | hello | reply so far)
//   dialer -> acceptor  proof   32 bytes: HMAC-SHA256(secret, "dial" | hello | reply)
//   acceptor -> dialer  done     4 bytes: verdict
//
// Fresh nonces of both sides stand in both proofs, so nothing recorded can be played again; the
// labels differ, so nothing can be reflected.
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

// One line for a person, without any of the bytes.
const char* explain(Verdict verdict);

// What one side knows of the job, and who it is. Without a secret the key is all zeros: strays are
// kept out, attackers are not.
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

// Whether the first bytes of what a stranger sent can be a hello at all.
inline constexpr std::size_t kMagicBytes = 4;
bool has_hello_magic(std::span<const std::byte, kMagicBytes> bytes);

struct HelloCheck {
  Verdict verdict = Verdict::kMalformed;
  int from = -1;
  int stream = -1;
};
// The acceptor's view of a hello: who it is from, if it may go on.
HelloCheck check_hello(const Identity& me, std::span<const std::byte, kHelloBytes> hello);

// With a verdict other than kWelcome: a refusal, with neither nonce nor proof.
Reply make_reply(const Identity& me, std::span<const std::byte, kHelloBytes> hello, Verdict verdict,
                 const Nonce& nonce);

// The dialer's view of a reply: kWelcome, the acceptor's refusal, or kSecret when the acceptor
// cannot prove that it holds the secret.
Verdict check_reply(const Identity& me, std::span<const std::byte, kHelloBytes> hello,
                    std::span<const std::byte, kReplyBytes> reply);

Proof make_proof(const Identity& me, std::span<const std::byte, kHelloBytes> hello,
                 std::span<const std::byte, kReplyBytes> reply);
// Constant time in the proof's bytes.
bool check_proof(const Identity& me, std::span<const std::byte, kHelloBytes> hello,
                 std::span<const std::byte, kReplyBytes> reply,
                 std::span<const std::byte, kProofBytes> proof);

Done make_done(Verdict verdict);
Verdict check_done(std::span<const std::byte, kDoneBytes> done);

}  // namespace weft::net::internal
