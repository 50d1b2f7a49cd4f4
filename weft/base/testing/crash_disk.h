// For tests: the states in which a crash or a power cut may leave a folder. Not installed.
//
//   CrashDisk disk(root);                  // its state now, all of it on the disk
//   FileRecorder recorder(root);           // records the file calls below root
//   … the code under test …
//   for_each_crash(disk, recorder.calls(), {}, [&](const DiskTree& left, std::size_t calls) {…});
//
// The model is that of a disk which keeps no promise that POSIX does not make (Pillai et al., "All
// file systems are not created equal", OSDI 2014):
// - A name (create, rename, exchange, remove, make folder) may be lost until its folder is flushed.
//   Any of the names of a folder may be lost, and the others kept. A call that uses a name or a
//   file of an earlier call is lost with it.
// - Bytes may be lost until their file is flushed: all of them, the second half, the last one; or
//   the file has its length and zeros in place of the bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "weft/base/file.h"
#include "weft/base/random.h"
#include "weft/base/testing/file_recorder.h"

namespace weft {

// Files by path, with their bytes; folders have none.
using DiskTree = std::map<std::string, std::optional<std::string>>;

inline void write_tree(const DiskTree& tree, const std::string& root) {
  std::filesystem::create_directories(root);
  for (const auto& [path, bytes] : tree) {
    if (bytes) {
      std::ofstream(root + "/" + path, std::ios::binary) << *bytes;
    } else {
      std::filesystem::create_directory(root + "/" + path);
    }
  }
}

// Gives one of `count` choices, from 0.
using Choose = std::function<std::size_t(std::size_t count)>;

// A folder on a disk: what survives a crash for certain, and the changes since.
class CrashDisk {
 public:
  // Reads the folder. All of it is on the disk.
  explicit CrashDisk(const std::string& root) { root_ = read(root); }

  void apply(const RecordedCall& call) {
    const auto [folder, name] = place(call.path);
    switch (call.call) {
      case FileCall::kCreate: change(folder, {{name, std::make_shared<Node>()}}); break;
      case FileCall::kMakeFolder: change(folder, {{name, new_folder()}}); break;
      case FileCall::kWrite: node_at(call.path)->bytes += call.bytes; break;
      case FileCall::kRemove: change(folder, {{name, nullptr}}); break;
      case FileCall::kRename:
        change(folder, {{name, node_at(call.from)}, {place(call.from).second, nullptr}});
        break;
      case FileCall::kExchange:
        change(folder, {{name, node_at(call.from)}, {place(call.from).second, node_at(call.path)}});
        break;
      case FileCall::kFlush: flush(*node_at(call.path)); break;
      case FileCall::kLock: break;
    }
  }

  // The state after a crash. `choose` decides what is lost.
  DiskTree after_crash(const Choose& choose) const {
    DiskTree tree;
    collect(*root_, "", choose, tree);
    return tree;
  }

 private:
  struct Node;
  using NodePtr = std::shared_ptr<Node>;
  using Names = std::map<std::string, NodePtr>;
  struct Node {
    bool is_folder = false;
    Names names, safe_names;     // of a folder: as programs see it, and as it is on the disk
    std::vector<Names> changes;  // of a folder, since its last flush; null: no such name
    std::string bytes;           // of a file
    std::size_t safe_bytes = 0;  // of a file: those that were flushed
  };

  static NodePtr new_folder() {
    auto made = std::make_shared<Node>();
    made->is_folder = true;
    return made;
  }
  static NodePtr read(const std::filesystem::path& path) {
    auto made = std::make_shared<Node>();
    made->is_folder = std::filesystem::is_directory(path);
    if (!made->is_folder) {
      made->bytes = read_file(path.string(), std::size_t{1} << 30);
    } else {
      for (const auto& entry : std::filesystem::directory_iterator(path))
        made->names[entry.path().filename().string()] = read(entry.path());
    }
    flush(*made);
    return made;
  }
  static void flush(Node& node) {
    node.safe_bytes = node.bytes.size();
    node.safe_names = node.names;
    node.changes.clear();
  }
  NodePtr node_at(const std::string& path) const {
    if (path.empty()) return root_;
    const auto [folder, name] = place(path);
    return folder->names.at(name);
  }
  std::pair<NodePtr, std::string> place(const std::string& path) const {
    const auto slash = path.rfind('/');
    if (slash == std::string::npos) return {root_, path};
    return {node_at(path.substr(0, slash)), path.substr(slash + 1)};
  }
  static void change(const NodePtr& folder, const Names& names) {
    for (const auto& [name, node] : names) {
      if (node == nullptr) {
        folder->names.erase(name);
      } else {
        folder->names[name] = node;
      }
    }
    folder->changes.push_back(names);
  }

  static Names names_after_crash(const Node& folder, const Choose& choose) {
    Names names = folder.safe_names;
    std::set<std::string> lost_names;
    std::set<const Node*> lost_nodes;
    for (const Names& change : folder.changes) {
      bool is_lost = false;
      for (const auto& [name, node] : change)
        is_lost = is_lost || lost_names.contains(name) || (node && lost_nodes.contains(node.get()));
      if (!is_lost) is_lost = choose(2) == 1;
      for (const auto& [name, node] : change) {
        if (is_lost) {
          lost_names.insert(name);
          lost_nodes.insert(node.get());
        } else if (node == nullptr) {
          names.erase(name);
        } else {
          names[name] = node;
        }
      }
    }
    return names;
  }
  static std::string bytes_after_crash(const Node& file, const Choose& choose) {
    const std::size_t more = file.bytes.size() - file.safe_bytes;
    if (more == 0) return file.bytes;
    const std::string safe = file.bytes.substr(0, file.safe_bytes);
    switch (choose(5)) {
      case 0: return safe;
      case 1: return file.bytes.substr(0, file.safe_bytes + more / 2);
      case 2: return file.bytes.substr(0, file.bytes.size() - 1);
      case 3: return safe + std::string(more, '\0');
      default: return file.bytes;
    }
  }
  static void collect(const Node& folder, const std::string& prefix, const Choose& choose,
                      DiskTree& tree) {
    for (const auto& [name, node] : names_after_crash(folder, choose)) {
      if (node->is_folder) {
        tree[prefix + name] = std::nullopt;
        collect(*node, prefix + name + "/", choose, tree);
      } else {
        tree[prefix + name] = bytes_after_crash(*node, choose);
      }
    }
  }

  NodePtr root_;
};

struct CrashSearch {
  std::size_t most = 1000;  // States after each call: all of them, or so many that `seed` draws.
  std::uint64_t seed = 1;
};

// All states after a crash now, or `search.most` of them that `numbers` draws.
inline std::vector<DiskTree> states_after_crash(const CrashDisk& disk, const CrashSearch& search,
                                                Random& numbers) {
  std::vector<DiskTree> states;
  std::vector<std::pair<std::size_t, std::size_t>> digits;  // each choice, and their number
  do {
    std::size_t next = 0;
    states.push_back(disk.after_crash([&](std::size_t count) {
      if (next == digits.size()) digits.emplace_back(0, count);
      return digits[next++].first;
    }));
    while (!digits.empty() && ++digits.back().first == digits.back().second) digits.pop_back();
  } while (!digits.empty() && states.size() <= search.most);
  if (states.size() <= search.most) return states;
  for (DiskTree& state : states)
    state = disk.after_crash([&](std::size_t count) { return numbers.below(count); });
  return states;
}

// Calls `visit` with each state that a crash may leave after `made` of the calls. Returns
// the number of different states.
inline std::size_t for_each_crash(
    CrashDisk& disk, const std::vector<RecordedCall>& calls, const CrashSearch& search,
    const std::function<void(const DiskTree& left, std::size_t made)>& visit) {
  std::set<DiskTree> seen;
  Random numbers(search.seed);
  for (std::size_t made = 0; made <= calls.size(); ++made) {
    if (made > 0) disk.apply(calls[made - 1]);
    std::set<DiskTree> of_call;
    for (DiskTree& state : states_after_crash(disk, search, numbers)) {
      const auto [it, is_new] = of_call.insert(std::move(state));
      if (!is_new) continue;
      visit(*it, made);
      seen.insert(*it);
    }
  }
  return seen.size();
}

}  // namespace weft
