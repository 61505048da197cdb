"""The TaskManager: runs tasks in processes of their own and keeps what they finished."""
