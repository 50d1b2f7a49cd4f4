// What makes the handshake secure (its messages are in the header):
//
//   - The acceptor proves first, over the dialer's hello with its fresh nonce. The dialer sends its
//     proof only after that. So a rank that dials a process without the secret sends it no proof.
//   - The dialer's proof covers the whole hello and reply, with both nonces, the ranks, the epoch
//     and the verdict. A proof of another connection is wrong for this one.
//   - A proof is made of a label, then fields of fixed length. So two different transcripts never
//     have the same text.
//   - Proofs are compared in constant time.
//
// The order of check_hello() gives the most useful reason: the version first, since other fields
// may mean something else in another version; then the job, so that a stray process of another job
// is not told about this job's epoch or size.
//
// Pure functions: any thread may call them.
#include "weft/net/tcp/handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string_view>
#include <vector>

#include "weft/base/error.h"
#include "weft/net/tcp/internal/wire.h"
#include "weft/net/tcp/tcp.h"

namespace weft::net::internal {
namespace {

constexpr std::uint32_t kHelloMagic = 0x68544657;  // "WFTh"
constexpr std::uint32_t kReplyMagic = 0x72544657;  // "WFTr"
constexpr std::uint16_t kDoneMagic = 0x4657;       // "WF"
constexpr std::size_t kJobBytes = 32, kJobAt = 24, kStreamsAt = 56, kHelloNonceAt = 88;
constexpr std::size_t kReplyNonceAt = 8, kReplyMacAt = 40;

// With these arguments, OpenSSL fails only for lack of memory.
void require_memory(bool made) {
  if (!made) throw std::bad_alloc();
}

Proof mac(const Identity& me, std::string_view label, std::span<const std::byte> first,
          std::span<const std::byte> second) {
  static constexpr Secret kNone{};
  const Secret& key = me.secret ? *me.secret : kNone;
  std::vector<std::byte> text;
  for (const char c : label) text.push_back(static_cast<std::byte>(c));
  text.insert(text.end(), first.begin(), first.end());
  text.insert(text.end(), second.begin(), second.end());
  Proof out;
  unsigned length = 0;
  const auto* made = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                          reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                          reinterpret_cast<unsigned char*>(out.data()), &length);
  require_memory(made != nullptr && length == out.size());
  return out;
}

bool same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::array<std::byte, kJobBytes> job_field(const std::string& job) {
  std::array<std::byte, kJobBytes> field;
  require_memory(SHA256(reinterpret_cast<const unsigned char*>(job.data()), job.size(),
                        reinterpret_cast<unsigned char*>(field.data())) != nullptr);
  return field;
}

Proof reply_mac(const Identity& me, std::span<const std::byte, kHelloBytes> hello,
                std::span<const std::byte, kReplyBytes> reply) {
  return mac(me, "weft accept 1", hello, reply.first<kReplyMacAt>());
}

}  // namespace

const char* explain(Verdict verdict) {
  switch (verdict) {
    case Verdict::kWelcome: return "welcome";
    case Verdict::kVersion:
      return "it uses another version of weft's wire protocol; run the same version of weft on "
             "every rank";
    case Verdict::kJob: return "it belongs to another job (the job ids differ)";
    case Verdict::kWorld: return "it has another world size; set the same world size on every rank";
    case Verdict::kEpoch:
      return "it belongs to another epoch of the group; join again with the current epoch";
    case Verdict::kRank: return "its rank is not valid here; give every rank a distinct number";
    case Verdict::kSecret:
      return "it does not have this job's secret; give every rank the same secret";
    case Verdict::kStreams:
      return "it uses another number of streams; set the same number on every rank";
    case Verdict::kMalformed: return "it did not send weft's handshake";
    case Verdict::kTaken:
      return "that rank is connected already; give every rank a distinct number";
  }
  return "an unknown verdict";
}

Nonce fresh_nonce() {
  Nonce nonce;
  if (RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), static_cast<int>(nonce.size())) !=
      1)
    throw Error(Errc::kUnavailable,
                "the system gives no random numbers; free memory, or let this process open "
                "/dev/urandom",
                {"init"});
  return nonce;
}

Hello make_hello(const Identity& me, int to, int stream, const Nonce& nonce) {
  Hello hello{};
  std::byte* at = hello.data();
  put(at, kHelloMagic);
  put(at + 4, kWireVersion);
  put(at + 6, static_cast<std::uint16_t>(stream));
  put(at + 8, static_cast<std::int32_t>(me.rank));
  put(at + 12, static_cast<std::int32_t>(to));
  put(at + 16, static_cast<std::int32_t>(me.world));
  put(at + 20, me.epoch);
  const auto job = job_field(me.job);
  std::copy(job.begin(), job.end(), hello.begin() + kJobAt);
  put(at + kStreamsAt, static_cast<std::uint16_t>(me.streams));
  std::copy(nonce.begin(), nonce.end(), hello.begin() + kHelloNonceAt);
  return hello;
}

bool has_hello_magic(std::span<const std::byte, kMagicBytes> bytes) {
  return get<std::uint32_t>(bytes.data()) == kHelloMagic;
}

HelloCheck check_hello(const Identity& me, std::span<const std::byte, kHelloBytes> hello) {
  const std::byte* at = hello.data();
  if (!has_hello_magic(hello.first<kMagicBytes>())) return {Verdict::kMalformed};
  if (get<std::uint16_t>(at + 4) != kWireVersion) return {Verdict::kVersion};
  const int stream = get<std::uint16_t>(at + 6);
  const int from = get<std::int32_t>(at + 8);
  const auto job = job_field(me.job);
  if (!std::equal(job.begin(), job.end(), hello.begin() + kJobAt)) return {Verdict::kJob};
  if (get<std::uint32_t>(at + 20) != me.epoch) return {Verdict::kEpoch};
  if (get<std::int32_t>(at + 16) != me.world) return {Verdict::kWorld};
  // The higher rank dials.
  if (get<std::int32_t>(at + 12) != me.rank || from <= me.rank || from >= me.world)
    return {Verdict::kRank};
  if (get<std::uint16_t>(at + kStreamsAt) != me.streams || stream >= me.streams)
    return {Verdict::kStreams};
  return {Verdict::kWelcome, from, stream};
}

Reply make_reply(const Identity& me, std::span<const std::byte, kHelloBytes> hello, Verdict verdict,
                 const Nonce& nonce) {
  Reply reply{};
  put(reply.data(), kReplyMagic);
  put(reply.data() + 4, kWireVersion);
  put(reply.data() + 6, static_cast<std::uint16_t>(verdict));
  // A rejection is not proved: the dialer only reports its reason.
  if (verdict != Verdict::kWelcome) return reply;
  std::copy(nonce.begin(), nonce.end(), reply.begin() + kReplyNonceAt);
  const Proof proof = reply_mac(me, hello, reply);
  std::copy(proof.begin(), proof.end(), reply.begin() + kReplyMacAt);
  return reply;
}

Verdict check_reply(const Identity& me, std::span<const std::byte, kHelloBytes> hello,
                    std::span<const std::byte, kReplyBytes> reply) {
  if (get<std::uint32_t>(reply.data()) != kReplyMagic) return Verdict::kMalformed;
  if (get<std::uint16_t>(reply.data() + 4) != kWireVersion) return Verdict::kVersion;
  const auto verdict = get<std::uint16_t>(reply.data() + 6);
  if (verdict > static_cast<std::uint16_t>(Verdict::kTaken)) return Verdict::kMalformed;
  if (verdict != 0) return static_cast<Verdict>(verdict);
  return same(reply_mac(me, hello, reply), reply.subspan<kReplyMacAt>()) ? Verdict::kWelcome
                                                                         : Verdict::kSecret;
}

Proof make_proof(const Identity& me, std::span<const std::byte, kHelloBytes> hello,
                 std::span<const std::byte, kReplyBytes> reply) {
  return mac(me, "weft dial 1", hello, reply);
}

bool check_proof(const Identity& me, std::span<const std::byte, kHelloBytes> hello,
                 std::span<const std::byte, kReplyBytes> reply,
                 std::span<const std::byte, kProofBytes> proof) {
  return same(make_proof(me, hello, reply), proof);
}

Done make_done(Verdict verdict) {
  Done done{};
  put(done.data(), kDoneMagic);
  put(done.data() + 2, static_cast<std::uint16_t>(verdict));
  return done;
}

Verdict check_done(std::span<const std::byte, kDoneBytes> done) {
  const auto verdict = get<std::uint16_t>(done.data() + 2);
  if (get<std::uint16_t>(done.data()) != kDoneMagic ||
      verdict > static_cast<std::uint16_t>(Verdict::kTaken))
    return Verdict::kMalformed;
  return static_cast<Verdict>(verdict);
}

}  // namespace weft::net::internal

std::string weft::net::secret_digest(const std::string& secret) {
  internal::Identity holder;
  holder.secret.emplace();
  WEFT_REQUIRE(secret.size() == holder.secret->size(), "the job's secret must have 32 bytes");
  std::memcpy(holder.secret->data(), secret.data(), secret.size());
  const internal::Proof digest = internal::mac(holder, "weft same job 1", {}, {});
  std::string text;
  for (std::size_t i = 0; i < 16; ++i) {
    static constexpr char kDigits[] = "0123456789abcdef";
    const auto byte = std::to_integer<unsigned>(digest[i]);
    text += kDigits[byte / 16];
    text += kDigits[byte % 16];
  }
  return text;
}
