// Starts the processes of a node: ranks, warm spares and parameter servers, each with its folder,
// environment and output.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/launch/internal/node.h"
#include "weft/launch/internal/servers.h"
#include "weft/launch/internal/spares.h"
#include "weft/launch/live_page.h"

namespace weft::launch::internal {

class Starter {
 public:
  // Makes the folder of the logs and error files. `run` empty: ranks execute the program of the
  // options. Throws Error(kBadConfig).
  Starter(Node& node, std::function<int(int rank)> run);
  // Removes the folder, unless it has logs.
  ~Starter();
  Starter(const Starter&) = delete;
  Starter& operator=(const Starter&) = delete;

  // Socket of the job's replicated store, for the environment of ranks.
  void set_store(const std::string& socket) { store_ = socket; }
  // Descriptor of the secret of the job; -1 without one.
  int secret() const { return secret_.get(); }

  // Starts a rank. One that `replaces` a lost one is a spare that is ready, or a new process.
  RankProcess start_rank(int local, bool replaces = false);
  // nullopt: the machine has no process, memory or descriptor for it now. Try it again later.
  std::optional<RankProcess> try_to_start(int local, bool replaces = true);
  Spares& spares() { return spares_; }
  ServerProcess start_server(int server);

  std::filesystem::path error_file_of(int local) const;
  // The file of the rank's stderr, which then also contains its error; empty: there is none.
  std::string log_of(int local) const;
  // The folder that the store process removes if the launcher is killed; empty: none.
  std::filesystem::path folder_to_remove() const { return keeps_folder_ ? "" : folder_; }
  // Makes a folder for the directory of the parameter servers. If the folder of the logs is kept,
  // this is another one, so that it can be removed.
  std::string make_servers_folder();

 private:
  void make_folder();
  ProcessOptions program_of(int rank);
  Spare start_spare();
  std::optional<RankProcess> become_rank(int local);
  LineRelay relay(int local, int stream, Fd pipe, bool append);
  LineRelay relay_of_server(int server, int stream, Fd pipe);
  bool goes_past(int local) const;  // true if the rank writes to the launcher's own descriptors
  bool logs_errors(int local) const;
  std::filesystem::path folder_of(int local) const;

  Node& node_;
  const std::function<int(int)> run_;
  const std::string server_program_;
  Fd secret_;
  std::string store_;
  std::filesystem::path folder_;
  bool keeps_folder_ = false;
  std::vector<Fd> locks_;  // of temporary folders
  std::unique_ptr<LivePage> page_;
  Spares spares_;
};

}  // namespace weft::launch::internal
