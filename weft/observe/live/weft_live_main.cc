// weft_live ADDRESS: serves the live page of a run. `weft --http` starts it (launch/live_page.h).
//
// Prints "listening http://127.0.0.1:41234/" or "error TEXT" on stdout. A line "run FOLDER" on
// stdin selects the run to follow. Exits when stdin is closed, which also happens when the parent
// process ends.
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <iostream>
#include <thread>

#include "weft/base/error.h"
#include "weft/observe/live/server.h"

namespace {

// Limits the connections and the memory that hostile clients can take.
void limit_resources() {
  const rlimit files{256, 256}, memory{rlim_t{2} << 30, rlim_t{2} << 30};
  ::setrlimit(RLIMIT_NOFILE, &files);
  ::setrlimit(RLIMIT_AS, &memory);
}

int serve(const std::string& address) {
  weft::observe::RunView view;
  weft::observe::HttpServer server(weft::observe::parse_http_address(address), view);
  std::cout << "listening " << server.address().url() << std::endl;
  std::thread reader([&] {
    for (std::string line; std::getline(std::cin, line);) {
      if (line.rfind("run ", 0) == 0) view.follow(line.substr(4));
    }
    ::_exit(0);  // without waiting for open requests
  });
  server.serve();
  reader.detach();
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: weft_live ADDRESS; use weft --http instead\n";
    return 2;
  }
  // Terminal signals are for the parent process, which then closes stdin.
  for (const int number : {SIGINT, SIGHUP, SIGPIPE}) std::signal(number, SIG_IGN);
  limit_resources();
  try {
    return serve(argv[1]);
  } catch (const weft::Error& error) {
    std::cout << "error " << error.message() << std::endl;
    return weft::exit_code(error.code());
  } catch (const std::exception& error) {
    std::cout << "error --http: " << error.what() << std::endl;
    return 1;
  }
}
