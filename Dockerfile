# The course in a container. The lessons and the progress stay in the clone, which is mounted. The volume keeps the
# container's .venv apart from the host's.
#   docker build -t attention-course .
#   docker run --rm -it -p 8888:8888 -v "$PWD":/course -v attention-course-venv:/course/.venv attention-course
FROM python:3.13-slim
# g++ and binutils are for whole CUDA programs (python -m sim run), git and make for contributors.
RUN apt-get update && apt-get install -y --no-install-recommends binutils g++ git make && rm -rf /var/lib/apt/lists/*
WORKDIR /course
EXPOSE 8888
CMD ["python", "notebooks/course", "lab", "--no-browser", "--ip=0.0.0.0"]
