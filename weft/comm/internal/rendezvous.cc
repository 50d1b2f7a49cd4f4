// The keys of one attempt, below "regroup/<epoch>/", in the order of their use:
//
//   count, arrived/<n>   a rank draws a number and writes its Arrival under it
//   members              the list of members, by compare-and-set
//   group/…              the exchanges of the members while they connect (meeting.h)
//   ready/<rank>         this member is connected
//   outcome              "formed" or "failed", by compare-and-set
//
// Two of them are decisions, members and outcome. Ranks see arrivals at different times, so they
// may compute different lists. One may give up while another sees all ready. Whoever is first in
// the store decides, and all others take what is there. All other keys are observations, which may
// be late or incomplete without harm: a rank draws its number before it writes its arrival, so a
// reader skips a number without one.
//
// Each member erases its own keys when the second group after this one has formed (WrittenKeys).
// Else the store of a long job would become full. The two decisions and the count stay, since late
// ranks and newcomers go through all epochs.
//
// So an epoch has at most one list and one outcome. A rank uses a group only if the outcome is
// "formed", which a member proposes only when all of them are ready.
//
// Beside the attempts, for the whole job: regroup/gone (by the launcher), regroup/newcomers (their
// number), regroup/newcomer/<n> (the rank that newcomer n asks for), and regroup/group (the number
// of the group that forms again).
//
// One thread of a rank uses the store. Where a wait is needed, the caller polls.
#include "weft/comm/internal/rendezvous.h"

#include <algorithm>
#include <cstdlib>
#include <locale>
#include <sstream>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <tuple>
#include <utility>

#include "weft/base/deadline.h"
#include "weft/base/error.h"
#include "weft/comm/internal/meeting.h"

namespace weft::comm::internal {
namespace {

constexpr auto kLookAgain = std::chrono::milliseconds(5);

std::string prefix_of(std::uint32_t epoch) { return "regroup/" + std::to_string(epoch); }

// Remembers which keys are set.
class RecordingStore : public c10d::PrefixStore {
 public:
  RecordingStore(std::string prefix, c10::intrusive_ptr<c10d::Store> store,
                 std::shared_ptr<WrittenKeys> written)
      : PrefixStore(std::move(prefix), std::move(store)), written_(std::move(written)) {}

  using PrefixStore::set;
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override {
    written_->add(key);
    PrefixStore::set(key, value);
  }

 private:
  const std::shared_ptr<WrittenKeys> written_;
};

std::string text_of(const std::vector<Arrival>& members) {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  for (const auto& member : members)
    text << member.name << ' ' << member.was << ' ' << member.job << '\n';
  return text.str();
}

std::vector<Arrival> members_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<Arrival> members;
  for (Arrival member; in >> member.name >> member.was >> member.job;) members.push_back(member);
  return members;
}

// Survivors at their previous ranks, newcomers at the free rank that they ask for, else at the
// first free one. Returns `members` as they are if a survivor's rank is not below their number.
std::vector<Arrival> at_their_ranks(const std::vector<Arrival>& members) {
  std::vector<std::optional<Arrival>> places(members.size());
  const auto take = [&](const Arrival& who, int place) {
    const auto at = static_cast<std::size_t>(place);
    if (place < 0 || at >= places.size() || places[at]) return false;
    places[at] = who;
    return true;
  };
  std::vector<Arrival> rest;
  for (const auto& who : members) {
    if (who.was >= 0 && !take(who, who.was)) return members;
  }
  for (const auto& who : members) {
    if (who.was < 0 && !take(who, who.job)) rest.push_back(who);
  }
  for (const auto& who : rest) {
    for (int place = 0; !take(who, place);) ++place;
  }
  std::vector<Arrival> ordered;
  for (auto& who : places) ordered.push_back(std::move(*who));
  return ordered;
}

// Drops those that have arrived and were lost since: a newcomer that came later asks for their
// rank.
void drop_replaced(std::vector<Arrival>& arrived) {
  const std::vector<Arrival> all = arrived;
  std::erase_if(arrived, [&](const Arrival& who) {
    return std::any_of(all.begin(), all.end(), [&](const Arrival& other) {
      return other.was < 0 && who.job >= 0 && other.job == who.job &&
             (who.was >= 0 || other.name > who.name);
    });
  });
}

}  // namespace

std::optional<std::vector<Arrival>> agree(std::vector<Arrival> arrived, const Awaited& awaited,
                                          bool late) {
  if (awaited.keep_ranks) drop_replaced(arrived);
  const int count = static_cast<int>(arrived.size());
  // Time does not bring ranks that cannot come.
  late = late || awaited.too_few;
  const bool all = std::all_of(awaited.names.begin(), awaited.names.end(), [&](const auto& member) {
    const auto& [name, job] = member;
    return std::any_of(arrived.begin(), arrived.end(), [&](const auto& who) {
      const bool replaces = awaited.keep_ranks && who.was < 0 && who.job >= 0 && who.job == job;
      return who.name == name || replaces;
    });
  });
  if (!late && (!all || count < awaited.size)) return std::nullopt;
  if (count < awaited.at_least) {
    if (!late) return std::nullopt;
    throw Error(Errc::kTimeout,
                "only " + std::to_string(count) + " of at least " +
                    std::to_string(awaited.at_least) +
                    " ranks joined the new group; start more ranks, lower at_least, or restart "
                    "from the last checkpoint",
                {"regroup"});
  }
  // Survivors, then newcomers that replace a lost member, then others.
  const auto order = [&](const Arrival& who) {
    const bool replaces = awaited.keep_ranks && awaited.jobs.contains(who.job);
    return std::make_tuple(who.was >= 0 ? 0 : replaces ? 1 : 2, who.was, who.name);
  };
  std::sort(arrived.begin(), arrived.end(),
            [&](const Arrival& a, const Arrival& b) { return order(a) < order(b); });
  if (awaited.size > 0 && count > awaited.size)
    arrived.resize(static_cast<std::size_t>(awaited.size));
  if (awaited.keep_ranks && static_cast<int>(arrived.size()) == awaited.size)
    return at_their_ranks(arrived);
  return arrived;
}

int missing_rank(const std::vector<Arrival>& arrived, const Awaited& awaited) {
  const auto is_missing = [&](const auto& member) {
    return std::none_of(arrived.begin(), arrived.end(),
                        [&](const Arrival& who) { return who.name == member.first; });
  };
  const auto found = std::find_if(awaited.names.begin(), awaited.names.end(), is_missing);
  return found == awaited.names.end() ? -1 : found->second;
}

bool is_worth_waiting(const std::vector<Arrival>& arrived, const Awaited& awaited,
                      const std::set<int>& coming) {
  if (awaited.too_few || static_cast<int>(arrived.size()) >= awaited.at_least) return false;
  return std::any_of(coming.begin(), coming.end(), [&](int job) {
    const bool is_there = std::any_of(arrived.begin(), arrived.end(), [&](const Arrival& who) {
      return who.was < 0 && who.job == job;
    });
    return !is_there && (awaited.jobs.contains(job) || awaited.newcomers.contains(job));
  });
}

std::optional<std::vector<Arrival>> newcomers_alone(std::vector<Arrival> arrived,
                                                    const std::set<int>& gone, int world) {
  drop_replaced(arrived);
  std::map<int, Arrival> by_job;
  for (const Arrival& who : arrived) {
    if (who.was >= 0 || who.job < 0) return std::nullopt;
    by_job.emplace(who.job, who);
  }
  std::vector<Arrival> members;
  for (int job = 0; job < world; ++job) {
    const auto found = by_job.find(job);
    if (found != by_job.end()) members.push_back(found->second);
    if (found == by_job.end() && !gone.contains(job)) return std::nullopt;
  }
  return members.empty() ? std::nullopt : std::optional(members);
}

Awaited without(Awaited awaited, const std::set<int>& gone) {
  std::erase_if(awaited.names, [&](const auto& member) { return gone.contains(member.second); });
  const auto is_gone = [&](int job) { return gone.contains(job); };
  const auto lost = std::count_if(awaited.jobs.begin(), awaited.jobs.end(), is_gone);
  const auto never = std::count_if(awaited.newcomers.begin(), awaited.newcomers.end(), is_gone);
  awaited.size = std::max(0, awaited.size - static_cast<int>(lost + never));
  awaited.too_few =
      static_cast<int>(awaited.jobs.size() - static_cast<std::size_t>(lost)) < awaited.at_least;
  return awaited;
}

LostRanks lost_ranks(c10d::Store& store) {
  if (!store.check({kGoneKey})) return {};
  const auto bytes = store.get(kGoneKey);
  std::istringstream in(std::string(bytes.begin(), bytes.end()));
  LostRanks lost;
  for (std::string word; in >> word;) {
    const bool is_marked = word[0] == '+' || word[0] == '*' || word[0] == '=';
    const int rank = std::atoi(word.c_str() + (is_marked ? 1 : 0));
    // The last word about a rank counts.
    lost.coming.erase(rank);
    if (word[0] == '*') lost.coming.insert(rank);
    if (word[0] == '+') lost.gone.erase(rank);
    if (!is_marked) lost.gone.insert(rank);
  }
  return lost;
}

std::string name_of_newcomer(c10d::Store& store, int job) {
  const std::string number = std::to_string(store.add("regroup/newcomers", 1));
  store.set("regroup/newcomer/" + number, std::to_string(job));
  return "new" + std::string(8 - std::min<std::size_t>(8, number.size()), '0') + number;
}

std::vector<int> newcomers_since(c10d::Store& store, std::size_t number) {
  std::vector<int> jobs;
  const auto count = static_cast<std::size_t>(store.add("regroup/newcomers", 0));
  while (number < count) {
    const std::string key = "regroup/newcomer/" + std::to_string(++number);
    if (!store.check({key})) break;  // it is about to say it
    const auto bytes = store.get(key);
    jobs.push_back(std::atoi(std::string(bytes.begin(), bytes.end()).c_str()));
  }
  return jobs;
}

std::optional<int> unreplaced_rank(c10d::Store& store, int world) {
  try {
    const auto lost = lost_rank(store);
    if (!lost) return std::nullopt;
    const auto gone = lost_ranks(store).gone;
    if (!gone.empty() && *gone.begin() < world) return *gone.begin();
    const auto newcomers = newcomers_since(store, 0);
    const bool is_replaced =
        std::find(newcomers.begin(), newcomers.end(), *lost) != newcomers.end();
    return is_replaced ? std::nullopt : lost;
  } catch (const std::exception&) {
    return std::nullopt;  // the store is gone: the next exchange reports it
  }
}

int group_that_regroups(c10d::Store& store, int number) {
  return std::atoi(store.compareSet("regroup/group", "", std::to_string(number)).c_str());
}

std::optional<int> replaced_member(const std::vector<Arrival>& members,
                                   const std::vector<int>& newcomers) {
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    const auto& [name, was, job] = members[rank];
    const auto number =
        name.starts_with("new") ? static_cast<std::size_t>(std::atoi(name.c_str() + 3)) : 0;
    // newcomers[n] is newcomer n + 1, so this looks only at those after the member itself.
    for (std::size_t later = number; job >= 0 && later < newcomers.size(); ++later) {
      if (newcomers[later] == job) return static_cast<int>(rank);
    }
  }
  return std::nullopt;
}

void WrittenKeys::add(const std::string& key) {
  const std::lock_guard lock(mutex_);
  keys_.insert(key);
}

void WrittenKeys::erase_from(const c10::intrusive_ptr<c10d::Store>& store, std::uint32_t epoch) {
  const std::lock_guard lock(mutex_);
  const auto place = c10::make_intrusive<c10d::PrefixStore>(prefix_of(epoch), store);
  try {
    for (const std::string& key : keys_) place->deleteKey(key);
  } catch (const std::exception&) {  // the store is gone: the next exchange reports it
  }
  keys_.clear();
}

Rendezvous::Rendezvous(const c10::intrusive_ptr<c10d::Store>& store, std::uint32_t epoch,
                       const std::shared_ptr<WrittenKeys>& written) {
  if (written) {
    store_ = c10::make_intrusive<RecordingStore>(prefix_of(epoch), store, written);
  } else {
    store_ = c10::make_intrusive<c10d::PrefixStore>(prefix_of(epoch), store);
  }
}

c10::intrusive_ptr<c10d::Store> Rendezvous::meeting_place() const {
  return c10::make_intrusive<c10d::PrefixStore>("group", store_);
}

void Rendezvous::arrive(const Arrival& mine) {
  const auto ticket = store_->add("count", 1);
  store_->set("arrived/" + std::to_string(ticket), text_of({mine}));
}

std::vector<Arrival> Rendezvous::arrived() const {
  std::vector<Arrival> all;
  const auto count = store_->add("count", 0);
  for (std::int64_t ticket = 1; ticket <= count; ++ticket) {
    const std::string key = "arrived/" + std::to_string(ticket);
    if (!has(key)) continue;  // it is about to join
    for (auto& who : members_of(store_->get_to_str(key))) all.push_back(std::move(who));
  }
  return all;
}

bool Rendezvous::has_survivor() const {
  if (!has("count")) return false;
  const auto all = arrived();
  return has("members") ||  // arrivals may be erased
         std::any_of(all.begin(), all.end(), [](const Arrival& who) { return who.was >= 0; });
}

std::vector<Arrival> Rendezvous::decide(const std::vector<Arrival>& members) {
  return members_of(put_first("members", text_of(members)));
}

std::optional<std::vector<Arrival>> Rendezvous::decided() const {
  return has("members") ? std::optional(members_of(store_->get_to_str("members"))) : std::nullopt;
}

void Rendezvous::ready(int rank) { store_->set("ready/" + std::to_string(rank), "yes"); }

void Rendezvous::report_lost(int rank) { meeting_place()->set(kLostKey, std::to_string(rank)); }

std::optional<int> Rendezvous::lost(int size) const {
  if (const auto reported = lost_rank(*meeting_place())) return reported;
  // After a failure some rank must be named, so that waits end: the first that is not ready, else
  // rank 0.
  if (!has("outcome") || store_->get_to_str("outcome") == "formed") return std::nullopt;
  for (int rank = 0; rank < size; ++rank) {
    if (!has("ready/" + std::to_string(rank))) return rank;
  }
  return 0;
}

bool Rendezvous::all_ready(int size, std::chrono::milliseconds wait,
                           const std::function<std::optional<int>()>& lost) const {
  const auto deadline = Deadline::in(wait);
  for (int rank = 0; rank < size;) {
    if (has("ready/" + std::to_string(rank))) {
      ++rank;
    } else if (has("outcome") || deadline.passed() || lost()) {
      return false;
    } else {
      std::this_thread::sleep_for(kLookAgain);
    }
  }
  return true;
}

bool Rendezvous::settle(bool formed) {
  // Not what this rank proposes, but what is stored: another one may have been first.
  return put_first("outcome", formed ? "formed" : "failed") == "formed";
}

bool Rendezvous::has(const std::string& key) const { return store_->check({key}); }

std::string Rendezvous::put_first(const std::string& key, const std::string& text) {
  return store_->compareSet(key, "", text);
}

}  // namespace weft::comm::internal
