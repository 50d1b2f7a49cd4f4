// How ranks agree on a number over a store that has the keys of earlier attempts. Keys:
//
//   attempt               rank 0 takes the next number N; the other ranks read it
//   attempt/N/came/RANK   each other rank leaves a word that no other process has
//   attempt/N/go/RANK     when all have come, rank 0 returns to each rank its word
//
// A rank may first read the number of an earlier attempt. Its word is not among the answers of that
// attempt, so it waits until rank 0 has taken the next number. A rank 0 that gives up has returned
// no word, so the others wait for its next number.
#include <chrono>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "weft/base/deadline.h"
#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/base/text/numbers.h"
#include "weft/comm/backend.h"
#include "weft/comm/internal/meeting.h"
#include "weft/observe/position/position.h"

namespace weft::comm {
namespace {

constexpr const char* kAttempt = "attempt";
constexpr auto kPollPause = std::chrono::milliseconds(5);

std::string key_of(int number, const char* what, int rank) {
  return std::string(kAttempt) + "/" + std::to_string(number) + "/" + what + "/" +
         std::to_string(rank);
}

// A rank in the call of agree_on_attempt().
struct Caller {
  c10d::Store& store;
  int rank;
  std::chrono::milliseconds timeout;
  Deadline deadline;
};

// `peer`: the rank that is awaited.
void wait_until(const Caller& me, int peer, const std::function<bool()>& is_done) {
  const observe::WaitScope shown("rendezvous", -1);
  while (!is_done()) {
    if (me.deadline.passed()) throw internal::not_joined(me.rank, peer, me.timeout);
    std::this_thread::sleep_for(kPollPause);
  }
}

int lead(const Caller& me, int size) {
  const int number = static_cast<int>(me.store.add(kAttempt, 1));
  for (int peer = 1; peer < size; ++peer) {
    wait_until(me, peer, [&] { return me.store.check({key_of(number, "came", peer)}); });
  }
  for (int peer = 1; peer < size; ++peer) {
    me.store.set(key_of(number, "go", peer), me.store.get_to_str(key_of(number, "came", peer)));
  }
  return number;
}

int follow(const Caller& me) {
  const std::string word = std::to_string(random_number());
  int number = 0;
  wait_until(me, 0, [&] {
    if (!me.store.check({kAttempt})) return false;
    const int latest = parse_count(me.store.get_to_str(kAttempt)).value_or(0);
    if (latest != number) {
      number = latest;
      me.store.set(key_of(number, "came", me.rank), word);
    }
    const std::string go = key_of(number, "go", me.rank);
    return me.store.check({go}) && me.store.get_to_str(go) == word;
  });
  return number;
}

}  // namespace

int agree_on_attempt(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout) {
  const Caller me{store, rank, timeout, Deadline::in(timeout)};
  try {
    return rank == 0 ? lead(me, size) : follow(me);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw internal::store_gone(error, {"init", rank});
  }
}

}  // namespace weft::comm
