#include "weft/launch/control.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
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
  const Server server([](const std::string&) { return "ok"; });
  EXPECT_EQ(launcher_of_run(run.string()), ::getpid());
}

}  // namespace
}  // namespace weft::launch
