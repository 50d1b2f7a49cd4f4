#include "weft/launch/control.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <stop_token>
#include <thread>

#include "weft/base/file.h"
#include "weft/base/testing/refusal.h"

namespace weft::launch {
namespace {

using std::chrono::seconds;

// Serves until told to stop.
class Server {
 public:
  explicit Server(std::function<std::optional<std::string>(const std::string&)> answer)
      : answer_(std::move(answer)), thread_([this] {
          while (!stop_) {
            std::vector<pollfd> watched;
            socket_.watch(watched);
            ::poll(watched.data(), watched.size(), 5);
            socket_.serve(answer_);
          }
        }) {}
  ~Server() {
    stop_ = true;
    thread_.join();
  }

 private:
  ControlSocket socket_;
  std::function<std::optional<std::string>(const std::string&)> answer_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// A run folder that names this process number as its launcher's.
std::string a_run(const std::string& name, pid_t launcher) {
  const auto run = std::filesystem::path(::testing::TempDir()) / name;
  std::filesystem::create_directories(run);
  write_file_atomic((run / "launcher").string(), std::to_string(launcher));
  return run.string();
}

// A socket with this name in the abstract namespace.
Fd listen_as(const std::string& name) {
  Fd made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  name.copy(address.sun_path + 1, name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  EXPECT_EQ(::bind(made.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
  EXPECT_EQ(::listen(made.get(), 1), 0);
  return made;
}

// Answers each request with the line. Other tests that run now may ask, too.
void answer(const std::stop_token& done, int listener, const std::string& line) {
  while (!done.stop_requested()) {
    pollfd asked{listener, POLLIN, 0};
    if (::poll(&asked, 1, 5) <= 0) continue;
    const Fd client(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    char request[64];
    if (::recv(client.get(), request, sizeof request, 0) > 0)
      ::send(client.get(), line.data(), line.size(), MSG_NOSIGNAL);
  }
}

TEST(Control, AnswersARequestOfTheSameUser) {
  const Server server([](const std::string& request) { return "heard " + request; });
  EXPECT_EQ(ask_launcher(::getpid(), "scale 3", Deadline::in(seconds(30))), "heard scale 3");
  EXPECT_EQ(ask_launcher(::getpid(), "scale 4", Deadline::in(seconds(30))), "heard scale 4");
}

TEST(Control, AnswersLaterIfTheAnswerIsNotKnownYet) {
  int calls = 0;
  const Server server([&](const std::string&) {
    return ++calls < 3 ? std::nullopt : std::optional<std::string>("ok");
  });
  EXPECT_EQ(ask_launcher(::getpid(), "scale 3", Deadline::in(seconds(30))), "ok");
  EXPECT_EQ(calls, 3);
}

TEST(Control, AsksNoLongerThanTheDeadline) {
  const Server server([](const std::string&) { return std::nullopt; });
  expect_refused(
      [] { ask_launcher(::getpid(), "scale 3", Deadline::in(std::chrono::milliseconds(20))); },
      Errc::kTimeout, "has not answered");
}

TEST(Control, NamesALauncherThatDoesNotRun) {
  expect_refused([] { ask_launcher(::getpid(), "scale 3", Deadline::in(seconds(30))); },
                 Errc::kInvalidArgument, "does not run");
}

TEST(Control, FindsTheLauncherOfALiveRunOnly) {
  const auto run = std::filesystem::path(::testing::TempDir()) / "control-run";
  const auto find = [&] { launcher_of_run(run.string()); };
  std::filesystem::remove_all(run);
  expect_refused(find, Errc::kInvalidArgument, "there is no such run");
  std::filesystem::create_directories(run);
  expect_refused(find, Errc::kInvalidArgument, "not started by weft's launcher");
  write_file_atomic((run / "launcher").string(), std::to_string(::getpid()));
  expect_refused(find, Errc::kInvalidArgument, "the run has ended");
  const Server server([&](const std::string& request) {
    return request == "run" ? run.string() : "another request";
  });
  EXPECT_EQ(launcher_of_run(run.string()), LauncherId(::getpid()));
}

// A run folder keeps the number of its launcher, and containers use the same numbers again.
TEST(Control, DoesNotTakeTheLauncherOfAnotherRunWithTheSameNumber) {
  const auto run = a_run("control-run-a", ::getpid());
  const Server server([](const std::string&) { return "/runs/control-run-b"; });
  expect_refused([&] { launcher_of_run(run); }, Errc::kInvalidArgument, "the run has ended");
}

// Containers that share a network.
TEST(Control, TellsLaunchersWithTheSameNumberInDifferentPidNamespacesApart) {
  const Fd before = listen_as("weft-launcher-" + std::to_string(::getpid()));
  const Fd elsewhere = listen_as("weft-launcher-" + std::to_string(::getpid()) + "-7");
  const auto run = a_run("control-run-elsewhere", 1);
  const std::jthread container(
      [&](const std::stop_token& done) { answer(done, elsewhere.get(), run); });
  const Server server([](const std::string& request) { return "heard " + request; });
  EXPECT_EQ(ask_launcher(::getpid(), "scale 3", Deadline::in(seconds(30))), "heard scale 3");
  EXPECT_EQ(launcher_of_run(run), LauncherId(::getpid(), 7));
}

}  // namespace
}  // namespace weft::launch
