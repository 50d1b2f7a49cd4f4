// A directory in a folder, for the processes of one host.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <thread>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/net/stream/bytes.h"
#include "weft/ps/internal/chain_message.h"
#include "weft/ps/view.h"

namespace weft::ps {
namespace {

using net::internal::ByteReader;
using net::internal::ByteWriter;

constexpr std::size_t kMaxDirectory = std::size_t{1} << 20;

struct Contents {
  std::map<std::uint32_t, View> views;
  std::map<std::uint32_t, ServerAddress> servers;
};

template <class Values>
void put_all(ByteWriter& out, const Values& values) {
  out.put(static_cast<std::uint32_t>(values.size()));
  for (const auto& [number, value] : values) {
    out.put(number);
    out.put_text(internal::encode(value));
  }
}

// The file `state` is replaced at one instant by processes that hold the lock of the file `lock`.
// A process that ends gives up its lock.
class FolderDirectory final : public Directory {
 public:
  explicit FolderDirectory(const std::string& folder) : folder_(folder) {
    make_directories(folder);
    lock_ = open_lock("/lock");
    users_ = open_lock("/users");
    if (::flock(users_.get(), LOCK_SH | LOCK_NB) != 0) fail_io("cannot lock", folder + "/users");
  }
  // The last user removes the folder. One that was killed does not count.
  ~FolderDirectory() override {
    if (::flock(users_.get(), LOCK_EX | LOCK_NB) == 0) remove_tree(folder_);
  }

  std::map<std::uint32_t, View> views(Deadline) override { return read().views; }
  std::map<std::uint32_t, ServerAddress> servers(Deadline) override { return read().servers; }

  bool replace(std::uint32_t shard, const View& next, Deadline deadline) override {
    return change(deadline, [&](Contents& contents) {
      View& view = contents.views[shard];
      if (next.number != view.number + 1) return false;
      view = next;
      return true;
    });
  }

  void announce(std::uint32_t server, const ServerAddress& address, Deadline deadline) override {
    change(deadline, [&](Contents& contents) {
      contents.servers[server] = address;
      return true;
    });
  }

 private:
  UniqueFd open_lock(const char* name) const {
    UniqueFd lock(::open((folder_ + name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!lock) fail_io("cannot open", folder_ + name);
    return lock;
  }
  std::string state() const { return folder_ + "/state"; }

  Contents read() const {
    Contents contents;
    if (::access(state().c_str(), F_OK) != 0) return contents;
    const std::string bytes = read_file(state(), kMaxDirectory);
    ByteReader in(bytes);
    for (std::uint32_t left = in.take<std::uint32_t>(); left > 0; --left) {
      const auto shard = in.take<std::uint32_t>();
      contents.views[shard] = internal::decode_view(in.take_text());
    }
    for (std::uint32_t left = in.take<std::uint32_t>(); left > 0; --left) {
      const auto server = in.take<std::uint32_t>();
      contents.servers[server] = internal::decode_address(in.take_text());
    }
    return contents;
  }

  bool change(Deadline deadline, const std::function<bool(Contents&)>& make) {
    // Threads of this process share the lock's descriptor, and with it the lock.
    const std::lock_guard guard(mutex_);
    while (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK && errno != EINTR) fail_io("cannot lock", folder_ + "/lock");
      if (deadline.passed())
        throw Error(Errc::kTimeout, "another process holds " + folder_ + "/lock");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    struct Unlock {
      int fd;
      ~Unlock() { ::flock(fd, LOCK_UN); }
    } const unlock{lock_.get()};
    Contents contents = read();
    if (!make(contents)) return false;
    ByteWriter out;
    put_all(out, contents.views);
    put_all(out, contents.servers);
    // Not flushed to the disk: the servers do not outlive the machine either.
    const std::string fresh = state() + ".new";
    const UniqueFd file(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!file) fail_io("cannot write", fresh);
    write_all(file.get(), out.take(), fresh);
    rename_path(fresh, state());
    return true;
  }

  const std::string folder_;
  UniqueFd lock_, users_;
  std::mutex mutex_;
};

}  // namespace

std::unique_ptr<Directory> folder_directory(const std::string& folder) {
  return std::make_unique<FolderDirectory>(folder);
}

}  // namespace weft::ps
