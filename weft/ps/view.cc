#include "weft/ps/view.h"

#include <unistd.h>

#include <algorithm>

#include "weft/base/error.h"
#include "weft/base/text/numbers.h"
#include "weft/base/text/variables.h"
#include "weft/ps/internal/chain_message.h"
#include "weft/store/client.h"

namespace weft::ps {
namespace {

// The number after the prefix of a key. Throws Error(kCorrupt).
std::uint32_t number_in(const std::string& key, const std::string& prefix) {
  const auto number = parse_number<std::uint32_t>(key.substr(prefix.size()));
  if (!number)
    throw Error(Errc::kCorrupt, "the store's key " + key + " is not one of a parameter server");
  return *number;
}

class StoreDirectory final : public Directory {
 public:
  StoreDirectory(const std::string& socket, const std::string& name)
      : store_(socket), views_("ps/" + name + "/view/"), servers_("ps/" + name + "/server/") {}

  std::map<std::uint32_t, View> views(Deadline deadline) override {
    std::map<std::uint32_t, View> views;
    for (const store::Item& item : store_.list(views_, deadline).items)
      views.emplace(number_in(item.key, views_), internal::decode_view(item.value.bytes));
    return views;
  }

  bool replace(std::uint32_t shard, const View& next, Deadline deadline) override {
    const std::string key = views_ + std::to_string(shard);
    const auto known = store_.get(key, deadline);
    const std::uint64_t number = known ? internal::decode_view(known->bytes).number : 0;
    if (next.number != number + 1) return false;
    return store_
        .compare_and_set({key, internal::encode(next)}, known ? known->revision : 0, deadline)
        .done;
  }

  std::map<std::uint32_t, ServerAddress> servers(Deadline deadline) override {
    std::map<std::uint32_t, ServerAddress> servers;
    for (const store::Item& item : store_.list(servers_, deadline).items)
      servers.emplace(number_in(item.key, servers_), internal::decode_address(item.value.bytes));
    return servers;
  }

  void announce(std::uint32_t server, const ServerAddress& address, Deadline deadline) override {
    store_.set({servers_ + std::to_string(server), internal::encode(address)}, deadline);
  }

 private:
  store::Client store_;
  const std::string views_, servers_;  // prefixes of the keys
};

}  // namespace

bool View::has(const Member& member) const {
  return std::find(members.begin(), members.end(), member) != members.end() || joining == member;
}

std::optional<View> without(const View& view, std::uint32_t server) {
  View next = view;
  ++next.number;
  std::erase_if(next.members, [&](const Member& member) { return member.server == server; });
  if (next.joining && next.joining->server == server) next.joining.reset();
  if (next.members.empty()) return std::nullopt;
  return next;
}

std::map<std::uint32_t, View> MemoryDirectory::views(Deadline) {
  const std::lock_guard lock(mutex_);
  return views_;
}

bool MemoryDirectory::replace(std::uint32_t shard, const View& next, Deadline) {
  const std::lock_guard lock(mutex_);
  View& view = views_[shard];
  if (next.number != view.number + 1) return false;
  view = next;
  return true;
}

std::map<std::uint32_t, ServerAddress> MemoryDirectory::servers(Deadline) {
  const std::lock_guard lock(mutex_);
  return servers_;
}

void MemoryDirectory::announce(std::uint32_t server, const ServerAddress& address, Deadline) {
  const std::lock_guard lock(mutex_);
  servers_[server] = address;
}

std::unique_ptr<Directory> job_directory(const std::string& name, const std::string& store) {
  WEFT_REQUIRE(!name.empty() && name.find('/') == std::string::npos,
               "'" + name + "' is not the name of a parameter server: not empty, without slashes");
  // The servers of an earlier attempt have ended, and their shards with them.
  const std::string attempt = name + "-" + variable("TORCHELASTIC_RESTART_COUNT");
  const std::optional<std::string> socket =
      store.empty() ? store::Client::environment() : std::optional(store);
  if (socket) return std::make_unique<StoreDirectory>(*socket, attempt);
  const std::string run = variable("TORCHELASTIC_RUN_ID"), nodes = variable("GROUP_WORLD_SIZE");
  WEFT_REQUIRE(!run.empty() && run.find('/') == std::string::npos,
               "this process belongs to no job; start it by weft run, or use a "
               "ps::MemoryDirectory within one process, or a folder_directory within a host");
  WEFT_REQUIRE(nodes.empty() || nodes == "1",
               "a parameter server over several nodes needs the store of the job; start the job by "
               "weft run");
  const std::string place = variable("WEFT_PS_FOLDER");
  if (!place.empty()) return folder_directory(place + "/" + attempt);
  const std::string launcher = variable("WEFT_LAUNCHER_PID"), temporary = variable("TMPDIR");
  return folder_directory(
      (temporary.empty() ? "/tmp" : temporary) + "/weft-ps-" + std::to_string(::geteuid()) + "-" +
      run + "-" + (launcher.empty() ? std::to_string(::getppid()) : launcher) + "-" + attempt);
}

}  // namespace weft::ps
