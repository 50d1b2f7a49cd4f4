// A program that the launcher's tests start. Each argument is an action; actions run in order:
//   out:TEXT err:TEXT    print a line           exit:N signal:N      end
//   env:NAME             print NAME=value
//   pid:FILE             write "pid start-time" to the file
//   grandchild:FILE      start a process in this process group that waits forever, and write the
//                        file as pid does
//   ignore-term          ignore SIGTERM from now on
//   pause                wait forever (a signal ends it)
//   block-term           keep SIGTERM for later  wait-term            wait for it, then continue
//   await:FILE           wait until FILE exists (inotify)   touch:FILE   create it
//   store                set and get a key of the store at MASTER_ADDR:MASTER_PORT, as a client
//   secret               print a digest of the bytes behind WEFT_SECRET_FD
//   cause:TEXT           write TORCHELASTIC_ERROR_FILE     cd:FOLDER   change the current folder
//   discover             run rank discovery; exit with the error's code if it fails
// "R=action" runs on rank R only, "@N=action" on restart N only.
#include <fcntl.h>
#include <signal.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "weft/base/error.h"
#include "weft/base/json/error_file.h"
#include "weft/base/text/variables.h"
#include "weft/comm/environment.h"

namespace {

using weft::variable;

// One write per line, so that lines are in the order of actions.
void print(int fd, const std::string& text) {
  const std::string line = text + "\n";
  if (::write(fd, line.data(), line.size()) < 0) std::abort();
}

// Field 22 of /proc/PID/stat: together with the pid, it identifies a process uniquely.
std::string start_time(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string text((std::istreambuf_iterator<char>(in)), {});
  text = text.substr(text.rfind(')') + 2);
  for (int i = 0; i < 19; ++i) text = text.substr(text.find(' ') + 1);
  return text.substr(0, text.find(' '));
}

void make_pid_file(const std::string& file, pid_t pid) {
  std::ofstream(file + ".new") << pid << " " << start_time(pid);
  std::filesystem::rename(file + ".new", file);
}

void start_grandchild(const std::string& file) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    for (;;) ::pause();
  }
  make_pid_file(file, pid);
}

void await(const std::filesystem::path& file) {
  const int watch = ::inotify_init1(IN_CLOEXEC);
  ::inotify_add_watch(watch, file.parent_path().c_str(), IN_CREATE);
  char event[4096];
  while (!std::filesystem::exists(file)) {
    if (::read(watch, event, sizeof event) < 0) std::abort();
  }
  ::close(watch);
}

sigset_t term() {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGTERM);
  return set;
}

void block_term() {
  const sigset_t set = term();
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
}

void wait_for_term() {
  const sigset_t set = term();
  int number = 0;
  ::sigwait(&set, &number);
}

void use_store() {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(std::stoi(variable("MASTER_PORT")));
  options.isServer = false;
  options.waitWorkers = false;
  options.timeout = std::chrono::seconds(20);
  const auto store = c10::make_intrusive<c10d::TCPStore>(variable("MASTER_ADDR"), options);
  print(1, "sum " + std::to_string(store->add("ranks", 1)));
  const int world = std::stoi(variable("WORLD_SIZE"));
  store->set("rank" + variable("RANK"), std::vector<std::uint8_t>{'h', 'i'});
  for (int rank = 0; rank < world; ++rank)
    print(1,
          "rank" + std::to_string(rank) + " " + store->get_to_str("rank" + std::to_string(rank)));
}

void show_secret() {
  const std::string fd = variable("WEFT_SECRET_FD");
  char bytes[64];
  const ssize_t size = fd.empty() ? -1 : ::read(std::stoi(fd), bytes, sizeof bytes);
  const std::string_view secret(bytes, size < 0 ? 0 : static_cast<std::size_t>(size));
  print(1, "secret " + std::to_string(size) + " " +
               std::to_string(std::hash<std::string_view>()(secret)));
}

void discover() {
  try {
    print(1, weft::comm::discover(weft::comm::Environment::process()).banner());
  } catch (const weft::Error& error) {
    print(2, error.what());
    ::_exit(weft::exit_code(error.code()));
  }
}

// The store process is the launcher's first child.
void kill_store() {
  const std::string launcher = std::to_string(::getppid());
  pid_t first = 0;
  std::ifstream("/proc/" + launcher + "/task/" + launcher + "/children") >> first;
  if (first <= 0 || first == ::getpid()) std::abort();
  ::kill(first, SIGKILL);
}

void perform(const std::string& thing, const std::string& value) {
  if (thing == "out")
    print(1, value);
  else if (thing == "err")
    print(2, value);
  else if (thing == "exit")
    ::_exit(std::stoi(value));
  else if (thing == "signal")
    ::raise(std::stoi(value));
  else if (thing == "env")
    print(1, value + "=" + variable(value.c_str()));
  else if (thing == "pid")
    make_pid_file(value, ::getpid());
  else if (thing == "grandchild")
    start_grandchild(value);
  else if (thing == "ignore-term")
    ::signal(SIGTERM, SIG_IGN);
  else if (thing == "pause")
    ::pause();
  else if (thing == "block-term")
    block_term();
  else if (thing == "wait-term")
    wait_for_term();
  else if (thing == "await")
    await(value);
  else if (thing == "touch")
    std::ofstream(value).put('\n');
  else if (thing == "store")
    use_store();
  else if (thing == "kill-store")
    kill_store();
  else if (thing == "secret")
    show_secret();
  else if (thing == "discover")
    discover();
  else if (thing == "cd")
    std::filesystem::current_path(value);
  else if (thing == "cause")
    weft::write_error_file(value);
  else
    print(2, "unknown: " + thing), ::_exit(99);
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    std::string text = argv[i];
    if (text.size() > 2 && text[1] == '=' && std::isdigit(text[0])) {
      if (variable("RANK") != text.substr(0, 1)) continue;
      text = text.substr(2);
    }
    if (text.size() > 3 && text[0] == '@' && text[2] == '=') {
      if (variable("TORCHELASTIC_RESTART_COUNT") != text.substr(1, 1)) continue;
      text = text.substr(3);
    }
    const auto colon = text.find(':');
    perform(text.substr(0, colon), colon == std::string::npos ? "" : text.substr(colon + 1));
  }
  return 0;
}
