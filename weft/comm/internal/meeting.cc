// An exchange over a store needs no connection: each rank sets its own key, and then polls for the
// key of each member in turn.
//
//   weft/<party><round>/<rank>   "<world size> <string of the rank>"
//   lost                         the number of a rank that the launcher has seen end
//   failed                       "<rank> <reason>" of a rank that cannot join
//
// All members make the same exchanges in the same order, so their counts of rounds agree without a
// message. Keys stay in the store: a slow rank still finds the strings of a round that the others
// have left long ago. A group that forms again erases its keys two groups later (rendezvous.h).
// When an exchange returns, all members have begun it; some may still be in it.
//
// Each turn of a wait also looks at `failed` and `lost`, so nobody uses up its timeout for a rank
// that cannot come. A failure of this rank itself is no reason: it may be of an earlier try. The
// pause between turns doubles up to 50 ms, so that many waiting ranks do not load the store.
//
// One thread of a rank uses the store and the count of rounds.
#include "weft/comm/internal/meeting.h"
#include "weft/base/text/numbers.h"

#include <algorithm>
#include <charconv>
#include <memory>
#include <numeric>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "weft/base/caught/caught.h"
#include "weft/base/deadline.h"
#include "weft/base/error.h"
#include "weft/observe/position/position.h"

namespace weft::comm::internal {
namespace {

using namespace std::chrono_literals;

struct Meeting {
  c10::intrusive_ptr<c10d::Store> store;
  Party party;
  int round = 0;
};

// Returns the rank that the launcher reports as lost, if any. Other programs can write to a store
// too, so values that are not ranks are errors.
std::optional<int> named_as_lost(c10d::Store& store) {
  if (!store.check({kLostKey})) return std::nullopt;
  const std::string text = store.get_to_str(kLostKey);
  if (const auto rank = parse_count(text)) return rank;
  throw Error(Errc::kCorrupt, "the store names '" + text.substr(0, 40) +
                                  "' as the lost rank, which is not a rank of this group; does "
                                  "another job use the same store?");
}

void look_for_failure(c10d::Store& store, int rank) {
  if (!store.check({kFailedKey})) return;
  const std::string text = store.get_to_str(kFailedKey);
  int failed = -1;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, failed);
  if (error != std::errc() || at == end || failed == rank) return;
  throw Error(Errc::kAborted, "rank " + std::to_string(failed) + " cannot join:" + at,
              {"init", rank, failed});
}

// Polls: the store's own wait() would use up its timeout without a look at kLostKey.
void wait_for(const Meeting& meeting, const std::string& key, int peer, Deadline deadline) {
  auto pause = std::chrono::microseconds(200);
  const auto& names = meeting.party.names;
  const observe::WaitScope shown("rendezvous", names ? names->of(peer) : -1);
  while (!meeting.store->check({key})) {
    look_for_failure(*meeting.store, meeting.party.rank);
    if (const auto lost =
            meeting.party.lost ? meeting.party.lost() : named_as_lost(*meeting.store)) {
      throw Error(Errc::kPeerLost,
                  "rank " + std::to_string(*lost) + " ended before all ranks had joined",
                  {"init", meeting.party.rank, *lost});
    }
    if (deadline.passed()) throw not_joined(meeting.party.rank, peer, meeting.party.timeout);
    std::this_thread::sleep_for(pause);
    pause = std::min<std::chrono::microseconds>(2 * pause, 50ms);
  }
}

// Each rank's message begins with the world size that it was given.
std::vector<std::string> exchange(Meeting& meeting, const std::string& mine) {
  const std::string prefix = "weft/" + meeting.party.name + std::to_string(meeting.round++) + "/",
                    size = std::to_string(meeting.party.size);
  meeting.store->set(prefix + std::to_string(meeting.party.rank), size + " " + mine);
  // One deadline for all members: a rank that is late costs the wait only once.
  const auto deadline = Deadline::in(meeting.party.timeout);
  std::vector<std::string> all;
  for (const int peer : meeting.party.members) {
    const std::string key = prefix + std::to_string(peer);
    wait_for(meeting, key, peer, deadline);
    const std::string said = meeting.store->get_to_str(key);
    const auto space = said.find(' ');
    if (said.substr(0, space) != size) {
      throw Error(Errc::kBadConfig,
                  "rank " + std::to_string(peer) + " was started with world size " +
                      said.substr(0, space) + " and rank " + std::to_string(meeting.party.rank) +
                      " with " + size + "; WORLD_SIZE must be the same on all ranks",
                  {"init", meeting.party.rank, peer});
    }
    all.push_back(said.substr(space + 1));
  }
  return all;
}

}  // namespace

void tell_failure(c10d::Store& store, int rank, const std::exception& error) noexcept {
  try {
    store.set(kFailedKey, std::to_string(rank) + " " + as_error(error).message());
  } catch (const std::exception&) {  // the store is gone: the next exchange reports it
  }
}

bool is_own(const std::exception& error) noexcept {
  const auto* const known = dynamic_cast<const Error*>(&error);
  return known == nullptr || (known->context().peer < 0 && known->code() != Errc::kPeerLost &&
                              known->code() != Errc::kTimeout && known->code() != Errc::kAborted);
}

std::optional<int> lost_rank(c10d::Store& store) {
  try {
    return named_as_lost(store);
  } catch (const std::exception&) {
    return std::nullopt;  // the next exchange reports a store that has ended or returns nonsense
  }
}

Error store_gone(const std::exception& error, const Error::Context& context) {
  const std::string what = error.what();
  return Error(Errc::kPeerLost,
               "the store does not answer; check whether the process that hosts it (the launcher, "
               "else rank 0) has ended: " +
                   what.substr(0, what.find('\n')),
               context);
}

Error not_joined(int rank, int peer, std::chrono::milliseconds timeout) {
  return Error(Errc::kTimeout,
               "rank " + std::to_string(peer) + " did not join within " +
                   std::to_string(timeout.count()) +
                   " ms; check that it was started with the same world size and store, and look "
                   "for its error message; for a slow start, raise the timeout",
               {"init", rank, peer});
}

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

net::Exchange exchange_over(c10::intrusive_ptr<c10d::Store> store, Party party) {
  if (party.members.empty()) party.members = all_ranks(party.size);
  const auto meeting = std::make_shared<Meeting>(Meeting{std::move(store), std::move(party)});
  return [meeting](const std::string& mine) {
    try {
      return exchange(*meeting, mine);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      throw store_gone(error, {"init", meeting->party.rank});
    }
  };
}

Forming meet_at(c10::intrusive_ptr<c10d::Store> store, Party party) {
  Forming forming{party.rank, party.size, {}, {}, {}};
  if (!store) return forming;
  forming.exchange = exchange_over(store, party);
  forming.among = [store, party](const std::vector<int>& members, const std::string& name) {
    Party some = party;
    some.members = members;
    some.name = name;
    return exchange_over(store, some);
  };
  // Transports ask this while they connect, so that their waits end as early as those over the
  // store.
  forming.lost_peer = [store, rank = party.rank, lost = party.lost] {
    try {
      look_for_failure(*store, rank);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      throw store_gone(error, {"init", rank});
    }
    return lost ? lost() : lost_rank(*store);
  };
  return forming;
}

std::optional<int> place_among(const std::vector<int>& ranks, std::optional<int> rank) {
  const auto found = std::find(ranks.begin(), ranks.end(), rank.value_or(-1));
  if (found == ranks.end()) return std::nullopt;
  return static_cast<int>(found - ranks.begin());
}

}  // namespace weft::comm::internal
