#include "weft/comm/internal/meeting.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "weft/base/deadline.h"
#include "weft/base/error.h"

namespace weft::comm::internal {
namespace {

using namespace std::chrono_literals;

struct Meeting {
  c10::intrusive_ptr<c10d::Store> store;
  Party party;
  int round = 0;
};

std::vector<std::uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

std::string text_at(c10d::Store& store, const std::string& key) {
  const auto value = store.get(key);
  return {value.begin(), value.end()};
}

// Asks again and again: the store's own wait() would sit out its timeout without a look at kLostKey.
void wait_for(const Meeting& meeting, const std::string& key, int peer, Deadline deadline) {
  auto pause = std::chrono::microseconds(200);
  while (!meeting.store->check({key})) {
    if (meeting.store->check({kLostKey})) {
      const int lost = std::stoi(text_at(*meeting.store, kLostKey));
      throw Error(Errc::kPeerLost, "rank " + std::to_string(lost) + " ended before all ranks had met", {"init", meeting.party.rank, lost});
    }
    if (deadline.passed()) {
      throw Error(Errc::kTimeout,
                  "rank " + std::to_string(peer) + " did not join within " + std::to_string(meeting.party.timeout.count()) + " ms",
                  {"init", meeting.party.rank, peer});
    }
    std::this_thread::sleep_for(pause);
    pause = std::min<std::chrono::microseconds>(2 * pause, 50ms);
  }
}

// What each says begins with the size of the world that it was told.
std::vector<std::string> exchange(Meeting& meeting, const std::string& mine) {
  const std::string prefix = "weft/" + meeting.party.name + std::to_string(meeting.round++) + "/",
                    size = std::to_string(meeting.party.size);
  meeting.store->set(prefix + std::to_string(meeting.party.rank), bytes_of(size + " " + mine));
  const auto deadline = Deadline::in(meeting.party.timeout);
  std::vector<std::string> all;
  for (const int peer : meeting.party.members) {
    const std::string key = prefix + std::to_string(peer);
    wait_for(meeting, key, peer, deadline);
    const std::string said = text_at(*meeting.store, key);
    const auto space = said.find(' ');
    if (said.substr(0, space) != size) {
      throw Error(Errc::kBadConfig,
                  "rank " + std::to_string(peer) + " was told a world of " + said.substr(0, space) + " ranks and rank " +
                      std::to_string(meeting.party.rank) + " one of " + size + "; WORLD_SIZE must be the same everywhere",
                  {"init", meeting.party.rank, peer});
    }
    all.push_back(said.substr(space + 1));
  }
  return all;
}

}  // namespace

std::optional<int> lost_rank(c10d::Store& store) {
  try {
    if (store.check({kLostKey})) return std::stoi(text_at(store, kLostKey));
  } catch (const std::exception&) {
    // What the store's own end means, the next exchange says.
  }
  return std::nullopt;
}

net::Exchange exchange_over(c10::intrusive_ptr<c10d::Store> store, Party party) {
  if (party.members.empty()) {
    party.members.resize(static_cast<std::size_t>(party.size));
    std::iota(party.members.begin(), party.members.end(), 0);
  }
  const auto meeting = std::make_shared<Meeting>(Meeting{std::move(store), std::move(party)});
  return [meeting](const std::string& mine) {
    try {
      return exchange(*meeting, mine);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      const std::string what = error.what();
      throw Error(
          Errc::kPeerLost,
          "the store does not answer; has the process that holds it (the launcher, else rank 0) ended? " + what.substr(0, what.find('\n')),
          {"init", meeting->party.rank});
    }
  };
}

}  // namespace weft::comm::internal
