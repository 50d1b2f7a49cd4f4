// Messages between the members of the replicated store, and their bytes on the wire.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "weft/store/internal/log.h"

namespace weft::store::internal {

struct Message {
  enum class Type : std::uint8_t {
    // leader -> member: entries after `index`, whose term is `log_term`; also the heartbeat
    kAppend,
    kAppendReply,  // accepted: the log agrees up to `index`; else: continue after `index`
    // leader -> member: bytes of an encoded Snapshot from `offset` on, of `total`
    kSnapshot,
    kSnapshotReply,  // accepted: installed; else: continue at `offset`
    kPreVote,        // would you vote for me in `term`? (thesis of D. Ongaro, section 9.6)
    kPreVoteReply,
    kVote,  // the candidate's last entry is `index`, of `log_term`
    kVoteReply,
    kRead,       // member -> leader: which index must I have applied to answer the read `round`?
    kReadReply,  // `index` for the read `round`
    kForward,    // member -> leader: append the command `data`
    kJoin,       // newcomer -> any member: `members` is the newcomer
    // accepted: you are member `to`; else: ask one of `members`; `from` is the leader, if known
    kJoinReply,
    kRemoved,  // leader -> sender: you are no member
  };
  static constexpr Type kLastType = Type::kRemoved;

  Type type = Type::kAppend;
  std::uint64_t cluster = 0;  // random number of the store; 0: a newcomer
  MemberId from = 0;
  MemberId to = 0;
  Term term = 0;
  Index index = 0;
  Term log_term = 0;
  Index commit = 0;
  // kAppend: newest round of reads; its reply repeats it. kRead: number chosen by the sender.
  std::uint64_t round = 0;
  std::uint64_t offset = 0, total = 0;
  bool accepted = false;
  std::vector<LogEntry> entries;
  std::string data;
  std::vector<Member> members;
  bool operator==(const Message&) const = default;
};

// First message of each side on a connection between two nodes.
struct Greeting {
  static constexpr std::uint32_t kVersion = 1;
  std::uint32_t version = kVersion;
  std::uint32_t node = 0;
  std::string address;  // at which others reach the sender
  bool operator==(const Greeting&) const = default;
};

// Most bytes of a message that decode_message() must accept: a command with the largest key and
// value, and the rest of its message.
inline constexpr std::size_t kMaxMessage = (std::size_t{9} << 20) + (std::size_t{1} << 20);

std::string encode(const Message& message);
std::string encode(const Greeting& greeting);
// Throw Error(kCorrupt) for bytes that encode() does not make. A greeting of another version has
// only its version.
Message decode_message(std::string_view bytes);
Greeting decode_greeting(std::string_view bytes);

void put(ByteWriter& out, const LogEntry& entry);
LogEntry take_entry(ByteReader& in);

}  // namespace weft::store::internal
